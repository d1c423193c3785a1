"""Why a provider is not used: the names that guards return and ``normport doctor`` prints."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A guard returns one of these, or None where the provider may run."""

    NOT_INSTALLED = "its package is not installed"
    CANNOT_LOAD = "its package is installed but cannot be loaded"
    OP_MISSING = "its package does not register the op"
    SCHEMA_MISMATCH = "its op is registered with another schema than the one this was written for"
    NO_COMPILER = "it needs a C++ compiler, and there is none"
    OTHER_PLATFORM = "it does not run on this device"

    TRACED = "the code is being traced, and the choice would freeze at the first size"
    SYMBOLIC = "a size is not known yet"
    EMPTY = "there are no elements, and the kernel has no guard for that"
    DEVICE = "the tensors are not on one device"
    DTYPE = "the kernel does not take the input's dtype"
    RANK = "the kernel does not take the input's number of dimensions"
    ROWS = "the number of rows is out of the kernel's range"
    SIZE = "the size of the normalized dimension is out of the kernel's range"
    LAYOUT = "the kernel does not take the input's strides"
    NO_MEMORY = "values of a tensor are not what lies at its address"
    OVERLAP = "elements of the input share memory with each other"
    SHARED = "the input shares memory with the weight"
    ALIASED = "input and residual share memory"

    WEIGHT_MISSING = "the kernel needs a weight"
    WEIGHT_GIVEN = "this path is for norms without a weight"
    WEIGHT_DTYPE = "the weight has another dtype than the input"
    WEIGHT_SHAPE = "the weight is not one row of the normalized size"
    WEIGHT_LAYOUT = "the weight is not contiguous"

    RESIDUAL = "the residual differs from the input in shape, dtype or layout"
    VARIANCE_SIZE = "the kernel has no variance over a part of the row"
    OFFSET = "the kernel does not add an offset to the weight, or adds one that is not wanted"
    ROUNDING = "the kernel rounds in another order"
    EPSILON = "the kernel takes one epsilon"
