"""Learning to weigh options in any lab: random labs and jobs, a graph network, and trying out.

``episodes`` draws labs and jobs, ``what_if`` plays them and tries out other answers, ``network`` is
what learns, ``run`` a training run, ``export`` makes a model of it.
"""
