"""The networks that there are, by what they are made of."""
