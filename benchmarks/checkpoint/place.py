"""What the benchmark and its ranks both know."""

# Names the bucket of the S3 server that the AWS_ variables point to.
BUCKET = "BENCH_BUCKET"
