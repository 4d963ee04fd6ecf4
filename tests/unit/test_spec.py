"""What a user can ask for: validation in the option's own words, round trips, and the two spellings of everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfnb.errors import UsageError
from kfnb.options import OPTIONS, complete, help_text, make_spec, parse_train
from kfnb.spec import TrainSpec, parse_duration


def spec_of(line: str) -> TrainSpec:
    return make_spec(parse_train(line))


def test_a_line_becomes_a_spec() -> None:
    spec = spec_of(
        "digits --nodes 2 --procs-per-node 2 --use lr,epochs --use net --out model,history --timeout 10m -- --x 1"
    )
    assert (spec.name, spec.nodes, spec.procs, spec.world_size) == ("digits", 2, 2, 4)
    assert spec.use == ("lr", "epochs", "net")
    assert spec.out == ("model", "history")
    assert spec.timeout == 600
    assert spec.args == ("--x", "1")


@pytest.mark.parametrize("quoted", ['--env "A=b c"', '--env A="b c"', "--env 'A=b c'"])
def test_every_quoting_of_a_value_gives_the_same(quoted: str) -> None:
    assert spec_of(quoted).env_values == {"A": "b c"}


def test_an_environment_value_is_kept_apart_from_a_name_to_copy() -> None:
    spec = spec_of("--env A=1,2 --env TOKEN --env B=x=y --env EMPTY=")
    assert spec.env_values == {"A": "1,2", "B": "x=y", "EMPTY": ""}
    assert spec.env_copies == ("TOKEN",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Digits", "--name: 'Digits' cannot be a job's name"),
        ("1.13.1", "cannot be a job's name"),
        ("My_nb", "cannot be a job's name"),
        ("x" * 39, "at most 38 characters"),
        ("x --nodes 0", "--nodes"),
        ("x --nodes two", "--nodes"),
        ("x --procs-per-node 0", "1 to 1024, or auto"),
        ("x --memory lots", "--memory: 'lots' is no amount of memory"),
        ("x --cpu many", "--cpu"),
        ("x --timeout soon", "no duration"),
        ("x --timeout -5", "--timeout"),
        ("x --env RANK=1", "RANK is set by kfnb"),
        ("x --env 1A=2", "no name of an environment variable"),
        ("x --env A=1 --env A", "twice"),
        ("x --use 1a", "no Python name"),
        ("x --framework tf", "--framework"),
        ("x --nodess 3", "unrecognized arguments: --nodess 3"),
        (
            "x --node 3",
            "unrecognized arguments: --node 3",
        ),  # no abbreviations: a later option would change their meaning
        ('x --env "A=b', "cannot be read"),
        ("x y", "unrecognized arguments: y"),
    ],
)
def test_what_cannot_be_is_refused_in_the_options_words(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(line)
    assert words in str(caught.value)


@pytest.mark.parametrize("line", ["--use lr, epochs", "--use lr ,epochs", "--use lr , epochs", "--use lr,epochs"])
def test_a_list_may_have_spaces_at_its_commas(line: str) -> None:
    assert spec_of(f"x {line} --nodes 2").use == ("lr", "epochs")
    assert spec_of(f"{line}").name == "train"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("x --procs-per-nod 2", "Did you mean --procs-per-node?"),
        ("x --lr 0.5", "arguments of the script itself go after `--`"),
        ("x --use lr epochs", "Several names are written a,b"),
    ],
)
def test_what_is_unknown_gets_a_hint(line: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(line)
    assert hint in caught.value.fix


def test_a_flag_given_in_a_lower_layer_can_be_taken_back() -> None:
    assert parse_train("x --no-detach") == {"name": "x", "detach": False}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), (" 1.5 h ", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


names = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(
    name=names,
    nodes=st.integers(1, 4096),
    procs=st.integers(1, 1024) | st.just("auto"),
    env=st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True), text, max_size=3),
    grace=st.floats(0.1, 1e6),
    args=st.lists(text, max_size=3),
)
def test_a_spec_survives_json(
    name: str, nodes: int, procs: int | str, env: dict[str, str], grace: float, args: list[str]
) -> None:
    env = {key: value for key, value in env.items() if key != "RANK"}
    spec = TrainSpec(name=name, nodes=nodes, procs_per_node=procs, env=env, grace=grace, args=tuple(args))
    assert TrainSpec.model_validate_json(spec.model_dump_json()) == spec
    assert make_spec({"name": name, **spec.changed()}) == spec


@pytest.mark.parametrize("given", [{"workspace": "a\0"}, {"env": {"A": "\0"}}, {"args": ("a\0b",)}, {"logdir": "\0"}])
def test_a_null_byte_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="null byte"):
        make_spec(given)


def test_auto_procs_are_the_gpus_of_a_node() -> None:
    assert TrainSpec(gpus=4).procs == 4
    assert TrainSpec().procs == 1
    assert TrainSpec(gpus=4, procs_per_node=2).procs == 2


def test_completion_offers_options_and_values() -> None:
    assert complete(["--precision", "b"]) == ["bf16"]
    assert complete(["--nodes", "2", "--n"]) == ["--namespace"]  # --nodes was given already
    assert "--env" in complete(["--env", "A=1", "--e"])  # can be given again
    assert complete(["--framework", ""]) == ["torch", "python"]


def test_help_names_every_option_with_its_meaning() -> None:
    text = help_text()
    for option in OPTIONS.values():
        assert f"--{option.name}" in text
        assert option.help
        assert option.help in text
