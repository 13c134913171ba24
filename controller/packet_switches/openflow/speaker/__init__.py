"""The program of the OpenFlow engine: eventlet patches its whole process."""
