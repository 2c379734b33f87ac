"""torch's containers of modules, typed by the modules that they hold, which torch's own annotations do not say."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from torch import nn

M = TypeVar("M", bound=nn.Module)

if TYPE_CHECKING:

    class ModuleDict(nn.ModuleDict, Generic[M]):
        def __init__(self, modules: Mapping[str, M]) -> None: ...

        def __getitem__(self, key: str) -> M: ...

        def items(self) -> ItemsView[str, M]: ...

        def values(self) -> ValuesView[M]: ...

    class ModuleList(nn.ModuleList, Generic[M]):
        def __init__(self, modules: Iterable[M]) -> None: ...

        @overload
        def __getitem__(self, idx: slice) -> ModuleList[M]: ...

        @overload
        def __getitem__(self, idx: int) -> M: ...

        def __getitem__(self, idx: int | slice) -> M | ModuleList[M]: ...

        def __iter__(self) -> Iterator[M]: ...

else:
    ModuleDict, ModuleList = nn.ModuleDict, nn.ModuleList
