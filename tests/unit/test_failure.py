"""Whatever an exception does, it becomes text that can be stored."""

import sys
import threading
import time
from pathlib import Path

import pytest

import skiplock.core.failure as failure_module
from skiplock.core.failure import describe, safe_text
from skiplock.core.outcome import Failure


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def storable(failure: Failure) -> bool:
    whole = f"{failure.error_class}{failure.message}{failure.traceback}"
    whole.encode()  # raises for lone surrogates
    return "\0" not in whole


# --- the ordinary case -----------------------------------------------------------------------------------------------


class Outer:
    class OddlyNamedError(Exception):
        pass


CLASSES = {
    "builtin": (ValueError("x"), "ValueError"),
    "own": (Outer.OddlyNamedError("x"), f"{__name__}.Outer.OddlyNamedError"),
    "not an Exception": (KeyboardInterrupt(), "KeyboardInterrupt"),
}


@pytest.mark.parametrize(("error", "expected"), CLASSES.values(), ids=CLASSES)
def test_the_class_is_named_with_its_module(error, expected):
    assert describe(error).error_class == expected


def test_message_and_traceback():
    failure = describe(raised(ValueError("no such order")))
    assert failure.message == "no such order"
    lines = failure.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in raised" in lines[1]
    assert "raise error" in lines[2]
    assert lines[-1] == "ValueError: no such order"


def test_an_error_that_was_never_raised_has_its_last_line():
    assert describe(ValueError("x")).traceback == "ValueError: x"


def test_notes_are_kept():
    error = ValueError("x")
    error.add_note("while importing row 7")
    assert describe(error).traceback.endswith("ValueError: x\nwhile importing row 7")


def chained(how: str) -> BaseException:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            if how == "from":
                raise ValueError("outer") from inner
            if how == "from None":
                raise ValueError("outer") from None
            raise ValueError("outer")  # noqa: B904
    except ValueError as outer:
        return outer


CHAINS = {
    "from": ("The above exception was the direct cause", True),
    "while handling": ("During handling of the above exception", True),
    "from None": ("above exception", False),
}


@pytest.mark.parametrize(("how", "words", "shown"), [(how, *rest) for how, rest in CHAINS.items()], ids=CHAINS)
def test_causes_come_first(how, words, shown):
    text = describe(chained(how)).traceback
    assert (words in text) is shown
    assert ("KeyError: 'inner'" in text) is shown
    assert text.endswith("ValueError: outer")


def test_a_group_shows_its_members_and_their_causes():
    text = describe(raised(ExceptionGroup("two", [chained("from"), TypeError("b")]))).traceback
    for part in (
        "ExceptionGroup: two (2 sub-exceptions)",
        "  | KeyError: 'inner'",
        "  | ValueError: outer",
        "  | TypeError: b",
    ):
        assert part in text


# --- our own frames --------------------------------------------------------------------------------------------------


def run_as(filename: str, call):
    """`call()` from a frame that belongs to `filename`."""
    code = compile("def run(call):\n    call()\n", filename, "exec")
    names = {}
    exec(code, names)
    names["run"](call)


def user_code():
    raise ValueError("x")


def caught_from(*filenames: str) -> BaseException:
    call = user_code
    for filename in reversed(filenames):
        call = lambda filename=filename, call=call: run_as(filename, call)  # noqa: E731
    try:
        call()
    except ValueError as error:
        # Start where the first of the frames made up here is, as a worker's own try would.
        while error.__traceback__.tb_frame.f_code.co_filename != (filenames or (__file__,))[0]:
            error = error.with_traceback(error.__traceback__.tb_next)
        return error
    raise AssertionError


OURS = str(Path(failure_module.__file__).parent.parent / "work" / "run.py")


def test_our_frames_at_the_top_are_left_out():
    text = describe(caught_from(OURS)).traceback
    assert OURS not in text
    assert "in user_code" in text


def test_our_frames_below_the_users_stay():
    text = describe(caught_from("users.py", OURS)).traceback
    assert OURS in text


def test_a_traceback_of_ours_alone_stays():
    try:
        failure_module._members(None, 0).__next__()
    except TypeError as error:
        error = error.with_traceback(error.__traceback__.tb_next)
        assert "failure.py" in describe(error).traceback
    else:
        raise AssertionError


# --- hostile exceptions ----------------------------------------------------------------------------------------------


class Raises(Exception):
    """Everything that can be asked of it raises (RETRY-09)."""

    def __str__(self):
        raise RuntimeError("no str")

    __repr__ = __str__

    def __reduce__(self):
        raise RuntimeError("no reduce")


class Exits(Exception):
    def __str__(self):
        raise SystemExit(1)


class NotText(Exception):
    def __str__(self):
        return 3


class Needs(Exception):
    """Pickles, but does not unpickle (RETRY-08)."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")


class Liar(Exception):
    @property
    def __class__(self):
        raise RuntimeError("no class")

    @property
    def __cause__(self):
        raise RuntimeError("no cause")

    @property
    def __traceback__(self):
        raise RuntimeError("no traceback")

    @property
    def __notes__(self):
        raise RuntimeError("no notes")

    @property
    def __dict__(self):
        raise RuntimeError("no dict")


class LyingGroup(ExceptionGroup):
    @property
    def __class__(self):
        raise RuntimeError("no class")


class Slippery(list):
    """Notes that nobody can get hold of by asking."""

    def __getitem__(self, index):
        raise RuntimeError("no item")

    def __iter__(self):
        raise RuntimeError("no items")

    __len__ = __iter__


class Nameless(type):
    @property
    def __module__(cls):
        raise RuntimeError("no module")


class FromNowhere(Exception, metaclass=Nameless):
    pass


class Shouting(str):
    def __str__(self):
        raise RuntimeError("no str")


class SaysShouting(Exception):
    def __str__(self):
        return Shouting("loud")


def circle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def odd_notes() -> BaseException:
    error = ValueError("x")
    error.__notes__ = [Raises(), 3, "\0"]
    return error


def notes_that_are_no_list() -> BaseException:
    error = ValueError("x")
    error.__notes__ = 7
    return error


def slippery_notes() -> BaseException:
    error = ValueError("x")
    error.__notes__ = Slippery(["a note"])
    return error


HOSTILE = {
    "str raises": (Raises("a"), "raised RuntimeError"),
    "str exits": (Exits("a"), "raised SystemExit"),
    "str is no str": (NotText("a"), "raised TypeError"),
    "str is an odd str": (SaysShouting("a"), "loud"),
    "extra argument": (Needs(1, "b"), "1: b"),
    "lies about itself": (Liar("a"), "a"),
    "class without module": (FromNowhere("a"), "a"),
    "argument that raises": (ValueError(Raises("a")), "raised RuntimeError"),  # RETRY-10
    "argument that is a lock": (ValueError(threading.Lock()), "lock"),  # RETRY-11
    "circle of causes": (circle(), "first"),
    "odd notes": (odd_notes(), "x"),
    "slippery notes": (slippery_notes(), "x"),
    "notes that are no list": (notes_that_are_no_list(), "x"),
    "group that lies about itself": (LyingGroup("lying", [ValueError("inside")]), "lying"),
    "NUL": (ValueError("a\0b"), r"a\x00b"),  # PAY-20
    "lone surrogate": (ValueError("a\ud800b"), r"a\ud800b"),  # PAY-21
    "file name that is no UTF-8": (FileNotFoundError(2, "gone", "\udcff"), r"\udcff"),
    "syntax error": (SyntaxError("bad", ("f.py", 1, 1, "x\0", 1, 2)), "bad"),
}


@pytest.mark.parametrize(("error", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_exception_becomes_text(error, message):
    failure = describe(error)
    assert message in failure.message
    assert failure.error_class
    assert failure.traceback
    assert storable(failure)


def test_whatever_it_says_of_itself_the_traceback_is_shown():
    text = describe(raised(Liar("a"))).traceback
    assert text.startswith("Traceback (most recent call last):")
    assert "ValueError: inside" in describe(LyingGroup("lying", [ValueError("inside")])).traceback
    assert describe(slippery_notes()).traceback == "ValueError: x\na note"


def test_a_circle_is_shown_once():
    text = describe(circle()).traceback
    assert text.count("ValueError: first") == 1
    assert text.count("ValueError: second") == 1


def test_a_traceback_that_cannot_be_had_leaves_the_message(monkeypatch):
    def broken(*_):
        raise SystemExit

    monkeypatch.setattr(failure_module, "_one", broken)
    assert describe(ValueError("x")) == Failure("ValueError", "x", "<traceback unavailable: SystemExit>")


# --- giants: PAY-25, PAY-26 ------------------------------------------------------------------------------------------


def endless(depth=0):
    endless(depth + 1)


def recursion() -> BaseException:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        endless()
    except RecursionError as error:
        return error
    finally:
        sys.setrecursionlimit(before)
    raise AssertionError


def long_chain() -> BaseException:
    error = first = ValueError(0)
    for number in range(1, 10_000):
        error.__cause__ = ValueError(number)
        error = error.__cause__
    return first


def tree(depth: int) -> BaseException:
    return ExceptionGroup("tree", [tree(depth - 1) for _ in range(8)]) if depth else chained("from")


def giant_notes() -> BaseException:
    error = ValueError("x")
    error.__notes__ = ["n" * 10_000_000] * 1_000_000
    return error


def tower() -> BaseException:
    error = ValueError("at the bottom")
    for _ in range(10_000):
        error = ExceptionGroup("a floor", [error])
    return error


def circle_of_contexts() -> BaseException:
    first = error = ValueError(0)
    for number in range(10_000):
        later = ValueError(number)
        later.__context__, error = error, later
    first.__context__ = error
    return error


GIANTS = {
    "notes of 10 MB, a million of them": (giant_notes, "characters cut"),
    "tower of 10,000 groups": (tower, "not shown"),
    "circle of 10,000 contexts": (circle_of_contexts, "older causes are not shown"),
    "name of 10 MB": (lambda: type("E" * 10_000_000, (Exception,), {})("x"), "characters cut"),
    "message of 10 MB": (lambda: ValueError("x" * 10_000_000), "characters cut"),
    "message of 10 MB of oddities": (lambda: ValueError("\0\ud800é" * 3_000_000), "characters cut"),
    "deep recursion": (recursion, "frames not shown"),
    "group of 10,000": (
        lambda: ExceptionGroup("many", [ValueError(n) for n in range(10_000)]),
        "9,992 more exceptions",
    ),
    "tree of groups": (lambda: tree(5), "characters cut"),
    "chain of 10,000": (long_chain, "older causes are not shown"),
}


@pytest.mark.parametrize(("make", "words"), GIANTS.values(), ids=GIANTS)
def test_a_giant_is_cut_and_quick(make, words):
    error = make()
    start = time.perf_counter()
    failure = describe(error)
    assert time.perf_counter() - start < 2  # tens of milliseconds; unbounded work would take minutes
    assert len(failure.message) <= 4_000
    assert len(failure.traceback) <= 32_000
    assert words in failure.traceback
    assert storable(failure)


def test_groups_of_groups_do_not_multiply():
    text = describe(tree(4), traceback_limit=10**9).traceback
    assert text.count("ExceptionGroup: tree") < 100


def test_the_ends_of_a_deep_traceback_are_kept():
    text = describe(recursion()).traceback
    assert "in recursion" in text
    assert text.endswith("RecursionError: maximum recursion depth exceeded")


def test_limits_are_the_callers():
    failure = describe(raised(ValueError("x" * 1000)), message_limit=100, traceback_limit=200)
    assert len(failure.message) <= 100
    assert len(failure.traceback) <= 200


# --- safe_text -------------------------------------------------------------------------------------------------------


def test_text_within_the_limit_stays():
    assert safe_text("añ🦊", 3) == "añ🦊"


@pytest.mark.parametrize("half", [6_000, 600_000])
def test_what_is_cut_is_counted(half):
    text = safe_text("h" * half + "t" * half, 100)
    head, mark, tail = text.split("\n")
    assert (set(head), set(tail)) == ({"h"}, {"t"})
    missing = int(mark.split()[1].replace(",", ""))
    assert len(head) + missing + len(tail) == 2 * half


@pytest.mark.parametrize("limit", [0, 1, 5, 30, 100])
@pytest.mark.parametrize("length", [0, 1, 99, 101, 10_000, 2_000_001])
def test_the_limit_is_kept(length, limit):
    assert len(safe_text("\0" * length, limit)) <= limit


@pytest.mark.parametrize(("value", "expected"), [(3, "3"), (None, "None"), (b"a", "b'a'"), (Shouting("a"), "raised")])
def test_anything_has_a_text(value, expected):
    assert expected in safe_text(value, 1000)
