"""The experiment of Yan, Zhu, Glick, Wu and Bergman, OFC 2022, run with real packets.

Two training jobs share six GPUs under two ToRs. *Static*: the GPUs stay where a rack has them,
so that rings cross the slow link between the ToRs. *Optical*: the controller rewires the optical
switch so that each job has a ToR to itself.
"""
