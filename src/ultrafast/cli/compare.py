compare = None
