# A JobSet of Google Kubernetes Engine on a TPU v4-32, one pod for each of its four hosts. Needs xpk
# (`pip install xpk`), a cluster made by `xpk cluster create`, and an image with mtf[tpu,gcs] and the
# recipes. mtf.cli.run finds the other pods by the variables that GKE sets on TPU pods.
xpk workload create \
    --project=my-project --zone=us-central2-b --cluster=my-cluster \
    --workload=mtf-base --tpu-type=v4-32 --spot \
    --docker-image=gcr.io/my-project/mtf:1 \
    --command='python -m mtf.run recipes.t5_1_1_base_c4 --set model_dir=gs://BUCKET/runs/base' \
    --env=MTF_STOPPED_FAILS=1 \
    --max-restarts=100 --restart-on-exit-codes=1 \
    --termination-grace-period-seconds=300
