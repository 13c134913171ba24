"""Computes and installs flow tables: values, the speaker process, and its client."""
