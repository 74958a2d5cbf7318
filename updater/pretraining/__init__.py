"""Pre-training on unlabelled media: what a generator leaves behind, learnt without any label."""
