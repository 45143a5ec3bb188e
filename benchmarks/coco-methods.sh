#!/usr/bin/env bash
# Every method on B0-C10 of an MS-COCO folder, on a CPU: the table of docs/results.md.
#   benchmarks/coco-methods.sh COCO_FOLDER WEIGHTS_FOLDER OUT [NAME...]
# WEIGHTS_FOLDER holds tf_efficientnet_lite0.safetensors and deit_tiny_patch16_224.safetensors. With names, only those
# runs. Each run takes one thread, so two calls with different names can share two cores; any of them can be
# interrupted and continued by the same command.
set -euo pipefail
coco=$1 weights=$2 out=$3
shift 3
wanted=" $* "
mlcil=${MLCIL:-mlcil}
here=$(dirname "$0")

go() {
    local name=$1
    shift
    if [[ $wanted != "  " && $wanted != *" $name "* ]]; then return; fi
    "$mlcil" run "$@" --data "coco:$coco" --protocol B0-C10 --set threads=1 --out "$out/$name"
}

cnn=("$here/coco-cpu.yaml" --weights "$weights/tf_efficientnet_lite0.safetensors" --epochs 2)
online=("${cnn[@]}" --epochs 1 --batch-size 10 --set base_lr=1e-4 --set lr=1e-4 --buffer total:400)
vit=(--method l2p --backbone deit_tiny_patch16_224 --weights "$weights/deit_tiny_patch16_224.safetensors"
    --epochs 1 --batch-size 16 --set base_lr=0.001875 --set lr=0.001875 --set augment=flip)

go ft "${cnn[@]}" --method ft
go joint "${cnn[@]}" --method joint
go probes "${cnn[@]}" --method probes --set base_lr=0.003 --set lr=0.003
go lwf "${cnn[@]}" --method lwf
go oewc "${cnn[@]}" --method oewc
go prs "${online[@]}" --method prs
go ocdm "${online[@]}" --method ocdm
go er "${cnn[@]}" --method er --buffer 5
go icarl "${cnn[@]}" --method icarl --buffer 5
go bic "${cnn[@]}" --method bic --buffer 5
go tpcil "${cnn[@]}" --method tpcil --buffer 5
go podnet "${cnn[@]}" --method podnet --buffer 5
go derpp "${cnn[@]}" --method derpp --buffer 5
go kd "${cnn[@]}" --method kd --buffer 5
go krt "${cnn[@]}" --method krt --set token_weight=300
go krt-r "${cnn[@]}" --method krt --set token_weight=300 --buffer 5
go krt_without_dpl "${cnn[@]}" --method krt_without_dpl --set token_weight=300 --buffer 5
go krt_without_ica "${cnn[@]}" --method krt_without_ica --buffer 5
go krt_with_kd "${cnn[@]}" --method krt_with_kd --set token_weight=300 --buffer 5
go l2p "${vit[@]}"
go l2p-r "${vit[@]}" --buffer 5
