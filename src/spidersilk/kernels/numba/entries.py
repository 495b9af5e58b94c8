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


# Groups: unit u of [start, stop) is the selected group u % k of the outer index u // k, `inner` values of a copy. Three
# strides say where they are in the weight.


@compiled
def refresh_groups(start, stop, weight, indices, master, inner, outer_stride, stride, inner_stride) -> None:
    k = indices.size
    outer, j = start // k, start % k  # counted on below: divisions take longer than the rest
    for unit in range(start, stop):
        at = outer * outer_stride + indices[j] * stride
        j += 1
        if j == k:
            outer, j = outer + 1, 0
        for i in range(inner):
            held, place = weight[at + i * inner_stride], unit * inner + i
            if to_entry(master[place], held) != held:
                master[place] = master.dtype.type(to_number(held))


@compiled
def write_groups(start, stop, weight, indices, master, inner, outer_stride, stride, inner_stride) -> None:
    k = indices.size
    outer, j = start // k, start % k
    for unit in range(start, stop):
        at = outer * outer_stride + indices[j] * stride
        j += 1
        if j == k:
            outer, j = outer + 1, 0
        for i in range(inner):
            place = at + i * inner_stride
            weight[place] = to_entry(master[unit * inner + i], weight[place])
