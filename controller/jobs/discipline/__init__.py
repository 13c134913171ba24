"""The order in which waiting jobs start: one implementation for the lab and for the simulator.

Nothing here waits, reads a clock or touches a device.
"""
