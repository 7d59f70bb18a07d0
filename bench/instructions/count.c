/* A plugin of QEMU's user emulation (7.2 or newer): aarch64 instructions that were executed, at every mark of the program.
   A mark is getpgid(MARK + n), which fails and does nothing else. Lines of `out`: mark, all, multiply-adds of vectors,
   loads and stores.

   gcc -O2 -shared -fPIC -o count.so count.c $(pkg-config --cflags glib-2.0) -I<folder of qemu-plugin.h> */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qemu-plugin.h>

#define MARK 7700000
#define GETPGID 155

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { ALL, MULTIPLY_ADDS, LOADS_STORES, KINDS };
static uint64_t counts[KINDS];
static const char *out;

/* The Arm reference manual's encodings: FMLA and FMLS of vectors, by vector and by element, then of SVE; loads, stores. */
static int kind(uint32_t w) {
  if ((w & 0xBF20FC00) == 0x0E20CC00 || (w & 0xBF80B400) == 0x0F801000) return MULTIPLY_ADDS;
  if ((w & 0xFF204000) == 0x65200000 || (w & 0xFF20F800) == 0x64200000) return MULTIPLY_ADDS;
  return (w & 0x0A000000) == 0x08000000 ? LOADS_STORES : ALL;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  uint64_t here[KINDS] = {0};
  here[ALL] = qemu_plugin_tb_n_insns(block);
  for (size_t i = 0; i < here[ALL]; i++) {
    uint32_t word;
    memcpy(&word, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(block, i)), 4);
    const int found = kind(word);
    if (found != ALL) here[found]++;
  }
  for (int k = 0; k < KINDS; k++)
    if (here[k])
      qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &counts[k], here[k]);
}

static void called(qemu_plugin_id_t id, unsigned int cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  if (number != GETPGID || a1 < MARK || a1 >= MARK + 100000) return;
  FILE *f = fopen(out, "a");
  if (!f) return;
  fprintf(f, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", a1 - MARK, counts[ALL], counts[MULTIPLY_ADDS],
          counts[LOADS_STORES]);
  fclose(f);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  for (int i = 0; i < argc; i++)
    if (!strncmp(argv[i], "out=", 4)) out = strdup(argv[i] + 4);
  if (!out) return -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  return 0;
}
