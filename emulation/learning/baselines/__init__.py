"""A general learner for any of the environments: a baseline beside the rules that they name."""
