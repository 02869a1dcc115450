"""A tree as instructions of a machine that backtracks, in Java's order of preference."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ottla.broker.security.java_regex.character_sets import CharacterSet
from ottla.broker.security.java_regex.tree import (
    Anchor,
    Characters,
    Choice,
    Greed,
    Group,
    Independent,
    Look,
    Node,
    PatternError,
    Reference,
    Repeat,
    Sequence,
    Tree,
    has_groups,
    is_deterministic,
    lengths,
)

# Counted repetitions are written out. A rule of people has some hundred instructions.
_MAX_INSTRUCTIONS = 10_000


class Op(IntEnum):
    TEXT = 0  # text
    ONE_OF = 1  # members
    RUN = 2  # members, least, most or None, greed
    SPLIT = 3  # preferred target, other target
    JUMP = 4  # target
    MARK = 5  # register
    CAPTURE = 6  # group, register
    STUCK = 7  # register, target: goes there if the position is still that of the register
    PLACE = 8  # place
    REFERENCE = 9  # group, ignores case
    LOOK = 10  # program, is negative, behind
    INDEPENDENT = 11  # program
    MATCH = 12


Instruction = tuple[object, ...]


@dataclass(slots=True)
class Program:
    """`is_plain`: whether a position and an instruction decide what follows, so that a machine
    needs to be at both once only."""

    instructions: list[Instruction] = field(default_factory=list)
    registers: int = 0
    is_plain: bool = True


def compile_tree(tree: Tree) -> Program:
    """Raises PatternError when a pattern is too large."""
    return _Compiler([0], [0]).compile(tree.root)


class _Compiler:
    """`size` and `registers` are counted over a program and those that it contains."""

    def __init__(self, size: list[int], registers: list[int]) -> None:
        self._program = Program()
        self._size = size
        self._registers = registers

    def compile(self, node: Node) -> Program:
        self._node(node)
        self._emit(Op.MATCH)
        self._program.registers = self._registers[0]
        return self._program

    def _emit(self, op: Op, *operands: object) -> int:
        self._size[0] += 1
        if self._size[0] > _MAX_INSTRUCTIONS:
            raise PatternError("the pattern is too large", 0)
        self._program.instructions.append((int(op), *operands))
        return len(self._program.instructions) - 1

    def _here(self) -> int:
        return len(self._program.instructions)

    def _register(self) -> int:
        self._registers[0] += 1
        return self._registers[0] - 1

    def _node(self, node: Node) -> None:
        match node:
            case Characters(members, literal):
                self._characters(members, literal)
            case Sequence(parts):
                for part in parts:
                    self._node(part)
            case Choice(options):
                self._choice(options)
            case Group(body, number):
                self._group(body, number)
            case Repeat():
                self._repeat(node)
            case Independent(body):
                self._independent(body)
            case Look(body, is_negative, behind):
                self._program.is_plain = False
                self._emit(Op.LOOK, self._inner(body), is_negative, behind)
            case Reference(number, ignores_case):
                self._program.is_plain = False
                self._emit(Op.REFERENCE, number, ignores_case)
            case Anchor(place):
                self._emit(Op.PLACE, place)

    def _inner(self, body: Node) -> Program:
        return _Compiler(self._size, self._registers).compile(body)

    def _characters(self, members: CharacterSet, literal: str | None) -> None:
        if literal is None:
            self._emit(Op.ONE_OF, members)
            return
        instructions = self._program.instructions
        if instructions and instructions[-1][0] == Op.TEXT and not self._is_target(self._here()):
            instructions[-1] = (int(Op.TEXT), f"{instructions[-1][1]}{literal}")
            return
        self._emit(Op.TEXT, literal)

    def _is_target(self, index: int) -> bool:
        """Whether an instruction goes to this place: text before and behind it is not one."""
        return any(
            index in each[1:3]
            for each in self._program.instructions
            if each[0] in (Op.SPLIT, Op.JUMP, Op.STUCK)
        )

    def _choice(self, options: tuple[Node, ...]) -> None:
        ends: list[int] = []
        for option in options[:-1]:
            split = self._emit(Op.SPLIT, 0, 0)
            self._node(option)
            ends.append(self._emit(Op.JUMP, 0))
            self._program.instructions[split] = (int(Op.SPLIT), split + 1, self._here())
        self._node(options[-1])
        for end in ends:
            self._program.instructions[end] = (int(Op.JUMP), self._here())

    def _group(self, body: Node, number: int | None) -> None:
        if number is None:
            self._node(body)
            return
        register = self._register()
        self._emit(Op.MARK, register)
        self._node(body)
        self._emit(Op.CAPTURE, number, register)

    def _independent(self, body: Node) -> None:
        self._program.is_plain = False
        self._emit(Op.INDEPENDENT, self._inner(body))

    def _repeat(self, node: Repeat) -> None:
        body = node.body
        if isinstance(body, Characters) and node.greed is not Greed.POSSESSIVE:
            self._emit(Op.RUN, body.members, node.least, node.most, node.greed)
            return
        if node.greed is Greed.POSSESSIVE:
            each = Independent(body)
            self._independent(Repeat(each, node.least, node.most, Greed.GREEDY))
            return
        if (node.least, node.most) != (0, 1):
            body = _as_java_repeats(body)
        self._loop(body, node)

    def _loop(self, body: Node, node: Repeat) -> None:
        """An iteration that consumes nothing is the last one, as in Java's `Loop`."""
        exits: list[int] = []
        can_stay = lengths(body)[0] == 0
        for _ in range(node.least):
            self._iteration(body, exits if can_stay else None)
        if node.most is not None:
            for _ in range(node.most - node.least):
                exits.append(self._split(node.greed))
                self._iteration(body, exits if can_stay else None)
        else:
            start = self._split(node.greed)
            exits.append(start)
            self._iteration(body, exits if can_stay else None)
            self._emit(Op.JUMP, start)
        for index in exits:
            self._leave(index, self._here())

    def _split(self, greed: Greed) -> int:
        here = self._here()
        exit_first = greed is Greed.LAZY
        return self._emit(Op.SPLIT, *((-1, here + 1) if exit_first else (here + 1, -1)))

    def _leave(self, index: int, end: int) -> None:
        instruction = self._program.instructions[index]
        self._program.instructions[index] = tuple(
            end if each == -1 else each for each in instruction
        )

    def _iteration(self, body: Node, exits: list[int] | None) -> None:
        if exits is None:
            self._node(body)
            return
        self._program.is_plain = False
        register = self._register()
        self._emit(Op.MARK, register)
        self._node(body)
        exits.append(self._emit(Op.STUCK, register, -1))


def _as_java_repeats(body: Node) -> Node:
    """Java repeats a group with a deterministic body as a unit (`GroupCurly`): groups in it keep
    what an iteration captured that is given back."""
    if isinstance(body, Group) and has_groups(body.body) and is_deterministic(body.body):
        return Group(Independent(body.body), body.number)
    return body
