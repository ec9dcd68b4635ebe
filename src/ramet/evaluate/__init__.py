"""Methods under the same budget on the same tasks: what each costs, what it reaches, and whether one can tell."""
