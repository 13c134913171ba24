"""Which waiting job starts when: one implementation for the lab's queue and for the simulator.

``contract`` says what a queue needs of the place where jobs run, and what each user has and had;
``queue`` decides, ``standings`` keeps the waiting in order, and the running ones that others may
take GPUs from. Nothing here waits, reads a clock or touches a device.
"""
