"""`spotsupd init`: what an installation consists of, what of it is missing, and making that. See plan.py first."""
