import pickle

from mlcil.core.errors import UserError, unknown_name


def test_an_unknown_name_suggests_the_nearest_and_lists_all_in_order():
    error = unknown_name("method", "krtt", ["joint", "ft", "krt"])
    assert isinstance(error, UserError)
    assert str(error) == "unknown method 'krtt', did you mean 'krt'? Allowed: ft, joint, krt"


def test_nothing_near_means_no_suggestion():
    assert str(unknown_name("method", "zzz", ["ft"])) == "unknown method 'zzz'. Allowed: ft"


def test_a_name_that_is_no_text_is_an_error_all_the_same():
    assert str(unknown_name("key", 1, ["ft"])) == "unknown key 1. Allowed: ft"  # YAML `1: x`
    assert str(unknown_name("key", True, ["ft"])) == "unknown key True. Allowed: ft"  # YAML `on: x`


def test_the_message_stays_on_one_line():
    assert "\n" not in str(unknown_name("key", "a\nb", ["ft"]))


def test_it_survives_the_way_between_processes():
    assert str(pickle.loads(pickle.dumps(UserError("what is wrong")))) == "what is wrong"
