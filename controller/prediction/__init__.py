"""How fast jobs get on over the links that they share: a model of flows, pure.

``sharing`` says what a job has to do and at what rate, ``network`` over which links of a lab.
"""
