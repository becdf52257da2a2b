"""Every limit can be set by a flag, the environment or a file, and shown with what set it."""

import pytest

from onlinecde.serving import Limits, ServeSettings
from onlinecde.serving.every_setting import settings_given, shown_settings, with_settings
from onlinecde.serving.problems import ServingError


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text("resident = 5\nsockets = 7\nburst = 11\nevict_after = 60.0\npage = false\n")
    environment = {"ONLINECDE_SOCKETS": "8", "ONLINECDE_BURST": "12", "ONLINECDE_KEEP": "none"}
    given = settings_given({"burst": "13"}, file, {**environment, "OTHER": "1"})
    settings, engine = with_settings(ServeSettings(limits=Limits(idle_seconds=9.0)), given)
    assert engine == {"resident": 5}
    assert (settings.limits.sockets, settings.limits.burst, settings.limits.idle_seconds) == (
        8,
        13,
        9.0,
    )
    assert (settings.evict_after, settings.page, settings.keep) == (60.0, False, None)
    shown = [
        line.split(maxsplit=2) for line in shown_settings(settings, engine, given).splitlines()
    ]
    assert ["burst", "13", "flag"] in shown
    assert ["sockets", "8", "environment"] in shown
    assert ["resident", "5", f"file {file}"] in shown
    assert ["idle_seconds", "9.0", "option"] in shown
    assert ["piece_rows", "512", "default"] in shown


@pytest.mark.parametrize(
    ("name", "value", "say"), [("residents", "1", "no setting"), ("burst", "x", "burst")]
)
def test_what_is_no_setting_or_no_value_for_it_is_refused(name, value, say):
    with pytest.raises(ServingError, match=say):
        settings_given({name: value}, None, {})
