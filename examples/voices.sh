#!/bin/sh
# A voice encoder that others have trained, adapted to one's own speakers while only sums leave their devices; then on a
# device: exported, enrolled, verified.   sh examples/voices.sh Resemblyzer-0.1.4-py3-none-any.whl AUDIOMNIST OUT
set -eu
wheel=$1 data=$2 out=$3
: "${ROUNDS:=200}" "${SELFSAME_PASSPHRASE:=for a try-out only}"
export SELFSAME_PASSPHRASE
mkdir -p "$out"

echo "# 1. Published weights become ours: digest, shapes and a known answer are checked"
selfsame weights convert ge2e-voice "$wheel" --out "$out/voice.safetensors"

echo "# 2. The encoder as it is: EER on pairs of single digits by speakers whom nobody trains on"
selfsame evaluate --net ge2e-voice --start "$out/voice.safetensors" --data audiomnist --path "$data" \
    --trials 20000 --bootstrap 200 --out "$out/before" --quiet | grep -E "^protocol +genuine|^unseen(,| pairs).*\["

echo "# 3. Adapted: its last layer learns on 48 speakers' devices, the server sees masked sums"
selfsame train fedcrowd --data audiomnist --path "$data" --start "$out/voice.safetensors" --aggregation masked \
    --set net.name=ge2e-voice --set net.train=last --set cohort.size=12 --set local.batch=8 --set local.lr=0.1 \
    --set local.schedule=cosine --set server.optimiser=momentum --set run.eval_every="$ROUNDS" \
    --rounds "$ROUNDS" --out "$out/run" --quiet
selfsame evaluate "$out/run" --trials 20000 --bootstrap 200 --quiet | grep -E "^protocol +genuine|^unseen(,| pairs).*\["

echo "# 4. For devices: one file with resampling and mel bands inside, and one with int8 weights"
selfsame export "$out/run" --int8 --check 64

echo "# 5. On a device: a speaker whom nobody trained on enrols, comes back, and another tries"
# Two takes of every digit make the template, two more the threshold; ten digits together are an attempt.
for model in model.onnx model.int8.onnx; do
    selfsame enrol "$out/run/$model" "$data"/data/28/[0-9]_28_[01].wav "$data"/data/28/[0-9]_28_[23].wav \
        --user "speaker 28" --rule fpr --fpr 0.1 --store "$out/$model.store"
    for speaker in 28 43; do
        echo "speaker $speaker says to be speaker 28:"
        selfsame verify "$out/run/$model" "speaker 28" "$data/data/$speaker"/[0-9]_"$speaker"_5.wav --together \
            --store "$out/$model.store" || true
    done
done
