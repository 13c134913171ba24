BUILTIN_NAMES=()
def builtin_graph(name): raise KeyError
