"""Which waiting job starts when: one implementation for the lab's queue and for the simulator.

``contract`` says what a queue needs of the place where jobs run, ``queue`` decides, ``line`` keeps
the waiting in order, ``victims`` the running ones that others may take GPUs from, and
``accounts`` what each user has and had. Nothing here waits, reads a clock or touches a device.
"""
