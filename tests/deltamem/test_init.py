import deltamem


def test_every_public_name_is_where_it_is_looked_up() -> None:
    assert {name: getattr(deltamem, name).__name__ for name in deltamem.__all__} == {name: name for name in deltamem.__all__}
