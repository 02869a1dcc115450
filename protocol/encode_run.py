"""Runs: neighbouring values that compiled encoders pack with one call.

A run holds fixed-size fields, lengths and tagged sections that usually take one byte, and short
integer arrays. The written code tests whether all are of the usual kind; if so it packs the run at
once, else piece by piece.

Before the loop over an array of structs the run must be out, unless the array is empty: then it
goes out together with what follows the array. `defer` keeps such a run back.
"""

from __future__ import annotations

from struct import Struct as Format

from ottla.protocol.primitives import COUNT_BITS, ONE_BYTE_VARINT, SHORT_ARRAY, RunPackers
from ottla.protocol.source_writer import SourceWriter

TWO_BYTE_VARINT = ONE_BYTE_VARINT << 7
THREE_BYTE_VARINT = TWO_BYTE_VARINT << 7

#: What an empty tagged section or a length of nothing is when it goes out alone.
ZERO_BYTE = 'b"\\x00"'


class RunItem:
    """A part of a run. `code` and `expression` are packed. `guard` is the condition for that and
    `otherwise` the expression of the bytes when it does not hold. `count` names the length of an
    integer array, whose elements `expression` then spreads; such an array must be short. `long`
    marks a length whose varint often takes two or three bytes, which then go with the run too."""

    __slots__ = ("code", "count", "expression", "guard", "long", "otherwise", "path")

    def __init__(
        self,
        path: str,
        code: str,
        expression: str,
        *,
        guard: str = "",
        otherwise: str = "",
        count: str = "",
        long: bool = False,
    ) -> None:
        self.path = path
        self.code = code
        self.expression = expression
        self.guard = guard
        self.otherwise = otherwise
        self.count = count
        self.long = long

    def without_guard(self) -> RunItem:
        """The same for a place where the guard is known to hold."""
        return RunItem(self.path, self.code, self.expression, count=self.count)


class RunWriter(SourceWriter):
    """Writes runs. `add` in the written code appends to the list of pieces."""

    def __init__(self, head: str, names: dict[str, object]) -> None:
        super().__init__(head, names)
        self.run: list[RunItem] = []
        # A run kept back, and the array that was empty if it still has to go out.
        self._deferred: tuple[list[RunItem], str] | None = None

    def item(
        self,
        code: str,
        expression: str,
        *,
        guard: str = "",
        otherwise: str = "",
        count: str = "",
        long: bool = False,
    ) -> None:
        """Adds to the run."""
        self.run.append(
            RunItem(
                self.place,
                code,
                expression,
                guard=guard,
                otherwise=otherwise,
                count=count,
                long=long,
            )
        )

    def defer(self, array: str) -> None:
        """Keeps the run back for the case that `array` is empty. Its last item is the count of the
        array, which then takes one byte. The caller has written the run for the other case."""
        run = [*self.run[:-1], self.run[-1].without_guard()]
        self.run = []
        self._deferred = (run, array)

    @property
    def has_deferred(self) -> bool:
        """Whether a run is being kept back; only one can be."""
        return self._deferred is not None

    def exchange_run(
        self, run: list[RunItem], deferred: tuple[list[RunItem], str] | None
    ) -> tuple[list[RunItem], tuple[list[RunItem], str] | None]:
        """Puts another run in place of the pending one and returns that."""
        pending = (self.run, self._deferred)
        self.run, self._deferred = run, deferred
        return pending

    def flush(self) -> None:
        """Writes what is pending."""
        run, deferred = self.exchange_run([], None)
        if deferred is None:
            self.write_run(run)
            return
        kept_back, array = deferred
        self.emit(f"if {array}:" if run else f"if not {array}:")
        self.indent += 1
        if run:
            self.write_run(run)
            self.indent -= 1
            self.emit("else:")
            self.indent += 1
        self.write_run(kept_back + run)
        self.indent -= 1

    def write_run(self, run: list[RunItem]) -> None:
        """Writes the code for one run."""
        if not run:
            return
        guards = [item.guard for item in run if item.guard]
        counts = [item.count for item in run if item.count]
        if counts:
            # SHORT_ARRAY is a power of two, so this is true if each is below it.
            guards.insert(0, f"{' | '.join(counts)} < {SHORT_ARRAY}")
        if not guards:
            self._add(self._packed(run), run)
        elif len(run) == 1 and not run[0].long:
            item = run[0]
            usual = ZERO_BYTE if item.expression == "0" else self._packed(run)
            self._add(f"{usual} if {item.guard} else {item.otherwise}", run)
        else:
            self._write_guarded(run, guards)

    def _write_guarded(self, run: list[RunItem], guards: list[str]) -> None:
        self._branch(f"if {' and '.join(guards)}:", run)
        last = run[-1]
        if last.long:
            others = "".join(f"{guard} and " for guard in guards[:-1])
            length = last.expression
            start, path = run[:-1], last.path
            low = f"{length} & 127 | 128"
            two = RunItem(path, "H", f"({low}) << 8 | {length} >> 7")
            self._branch(f"elif {others}{length} < {TWO_BYTE_VARINT}:", [*start, two])
            three = [
                RunItem(path, "B", low),
                RunItem(path, "H", f"({length} >> 7 & 127 | 128) << 8 | {length} >> 14"),
            ]
            self._branch(f"elif {others}{length} < {THREE_BYTE_VARINT}:", [*start, *three])
        self.emit("else:")
        self.indent += 1
        fixed: list[RunItem] = []
        for item in run:
            if not item.otherwise:
                fixed.append(item)
                continue
            if fixed:
                self._add(self._packed(fixed), fixed)
                fixed = []
            self._add(item.otherwise, [item])
        if fixed:
            self._add(self._packed(fixed), fixed)
        self.indent -= 1

    def _branch(self, condition: str, run: list[RunItem]) -> None:
        self.emit(condition)
        self.indent += 1
        self._add(self._packed(run), run)
        self.indent -= 1

    def _add(self, expression: str, items: list[RunItem]) -> None:
        fields = tuple(
            (item.path, "" if item.count else item.code, item.expression) for item in items
        )
        self.emit_fields(f"add({expression})", fields)

    def _packed(self, items: list[RunItem]) -> str:
        """The expression that packs the items at once."""
        arguments = ", ".join(item.expression for item in items)
        if not any(item.count for item in items):
            codes = "".join(item.code for item in items)
            name = "pack_" + codes.replace("?", "z")
            self.names[name] = Format(">" + codes).pack
            return f"{name}({arguments})"
        layout = [""]
        for item in items:
            if item.count:
                layout += [item.code, ""]
            else:
                layout[-1] += item.code
        packers = self.variable("R")
        self.names[packers] = RunPackers(tuple(layout))
        counts = [item.count for item in items if item.count]
        key = counts[0]
        for count in counts[1:]:
            key = f"({key}) << {COUNT_BITS} | {count}"
        return f"{packers}[{key}]({arguments})"
