"""The program in which an OpenFlow engine runs: eventlet patches its whole process."""
