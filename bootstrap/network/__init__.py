"""The network between nodes: EFA's software, and the variables of NCCL and gloo."""
