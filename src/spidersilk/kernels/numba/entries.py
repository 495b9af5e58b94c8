"""Single entries of a weight or its gradient, read and written, compiled. Loops work on [start, stop) of indices."""
# pyright: reportMissingImports=false

from __future__ import annotations

from spidersilk.kernels.numba.scalars import compiled, to_entry, to_number


@compiled
def take(start, stop, vector, indices, out, add) -> None:
    """out = (or +=) the entries at the indices."""
    if add:
        for i in range(start, stop):
            out[i] += out.dtype.type(to_number(vector[indices[i]]))
    else:
        for i in range(start, stop):
            out[i] = out.dtype.type(to_number(vector[indices[i]]))


@compiled
def refresh(start, stop, weight, indices, master) -> None:
    """A master that is not the weight's entry, rounded, becomes it."""
    for i in range(start, stop):
        held = weight[indices[i]]
        if to_entry(master[i], held) != held:
            master[i] = master.dtype.type(to_number(held))


@compiled
def write(start, stop, weight, indices, master) -> None:
    """The weight's entry = the master, rounded."""
    for i in range(start, stop):
        place = indices[i]
        weight[place] = to_entry(master[i], weight[place])
