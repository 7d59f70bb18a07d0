#!/bin/sh
# A voice encoder that others have trained, fitted to one's own speakers by one sum over their devices; then on a device:
# exported, enrolled, verified.   sh examples/voices.sh Resemblyzer-0.1.4-py3-none-any.whl AUDIOMNIST OUT
set -eu
wheel=$1 data=$2 out=$3
: "${TRIALS:=20000}" "${SELFSAME_PASSPHRASE:=for a try-out only}"
export SELFSAME_PASSPHRASE
mkdir -p "$out"

echo "# 1. Published weights become ours: digest, shapes and a known answer are checked"
selfsame weights convert ge2e-voice "$wheel" --out "$out/voice.safetensors"

echo "# 2. The encoder as it is: EER on pairs of single digits by speakers whom nobody asked"
selfsame evaluate --net ge2e-voice --start "$out/voice.safetensors" --data audiomnist --path "$data" \
    --trials "$TRIALS" --bootstrap 200 --out "$out/before" --quiet | grep -E "^protocol +genuine|^unseen(,| pairs).*\["

echo "# 3. Fitted: 48 speakers' devices add up what their own recordings differ in, and nothing else leaves them"
selfsame whiten --net ge2e-voice --start "$out/voice.safetensors" --data audiomnist --path "$data" --share 0.3 \
    --set net.states=true --set net.width=320 --set data.seconds=1.6 --trials "$TRIALS" --bootstrap 200 \
    --out "$out/run" --quiet | grep -E "^protocol|^unseen"

echo "# 4. For devices: one file with resampling and mel bands inside, and one with int8 weights"
selfsame export "$out/run" --int8 --check 64

echo "# 5. On a device: a speaker whom nobody asked enrols, comes back, and another tries"
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
