"""The judge of scheduled messages finds each kind of violation, and none where there is none."""

import pytest

from tests.later.books import KINDS, Books, Found, Scheduled, judge


def books_of(*messages: Scheduled) -> Books:
    books = Books()
    for one in messages:
        books.add(one)
    return books


def known(name: str, due: int, *, ticket: int | None = 0, by: float = 0.0) -> Scheduled:
    return Scheduled(name, "k", [due], [1], ticket=ticket, known_unix_ms=by)


def at(name: str, offset: int, moved: int = 1000, *, body: int = 1, key: str = "k") -> Found:
    return Found(name, key, 0, offset, moved, body)


def test_what_is_right_is_found_right() -> None:
    cancelled = known("c", 100, ticket=2)
    cancelled.is_cancelled = True
    late = known("d", 50, ticket=3, by=150.0)  # stored when the others were due already
    perhaps = known("e", 60, ticket=None)
    changed = Scheduled("f", "k", [70, 900], [1, 2], ticket=5, known_unix_ms=10.0)
    books = books_of(known("a", 100), known("b", 200, ticket=1), cancelled, late, perhaps, changed)
    log = [at("a", 0), at("b", 1), at("f", 2, 80, body=2), at("d", 3)]
    assert judge(books, log).ok
    assert judge(books, [*log, at("e", 4)]).ok
    books.check_list("k", ["b", "f"], [200, 900], until_unix_ms=150.0)
    assert judge(books, log).ok


@pytest.mark.parametrize(
    ("kind", "log"),
    [
        ("lost", [at("a", 0)]),
        ("invented", [at("a", 0), at("b", 1), at("x", 2)]),
        ("invented", [at("a", 0), at("b", 1, key="other")]),
        ("altered", [at("a", 0), at("b", 1, body=2)]),
        ("twice", [at("a", 0), at("b", 1), at("a", 2)]),
        ("early", [at("a", 0, 99), at("b", 1)]),
        ("order", [at("b", 0), at("a", 1)]),
        ("cancelled", [at("a", 0), at("b", 1), at("c", 2)]),
    ],
)
def test_each_fault_of_a_log_is_found(kind: str, log: list[Found]) -> None:
    cancelled = known("c", 100, ticket=2)
    cancelled.is_cancelled = True
    verdict = judge(books_of(known("a", 100), known("b", 200, ticket=1), cancelled), log)
    assert [*verdict.violations] == [kind]
    assert KINDS[kind] in str(verdict)


def test_of_two_that_are_due_together_the_one_stored_first_comes_first() -> None:
    books = books_of(known("a", 100, ticket=1), known("b", 100, ticket=0))
    assert judge(books, [at("b", 0), at("a", 1)]).ok
    assert [*judge(books, [at("a", 0), at("b", 1)]).violations] == ["order"]


@pytest.mark.parametrize(
    ("kind", "names", "dues"),
    [
        ("unlisted", ["a"], [100]),
        ("listed", ["a", "b", "c"], [100, 200, 300]),
        ("listed", ["a", "b", "x"], [100, 200, 300]),
        ("listed", ["a", "b"], [100, 250]),
        ("list_order", ["b", "a"], [200, 100]),
    ],
)
def test_each_fault_of_a_list_is_found(kind: str, names: list[str], dues: list[int]) -> None:
    cancelled = known("c", 300, ticket=2)
    cancelled.is_cancelled = True
    books = books_of(known("a", 100), known("b", 200, ticket=1), cancelled)
    books.check_list("k", names, dues, until_unix_ms=150.0)
    assert [one for one, _ in books.wrong] == [kind]
