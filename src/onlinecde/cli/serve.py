"""`onlinecde serve`: follow live streams with a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model, or of a run.")],
    store: Annotated[
        str,
        typer.Option(
            help="Where events, states and answers are kept: a SQLite file, or "
            "postgresql://user@host/database?schema=name."
        ),
    ] = "live.db",
    host: Annotated[
        str, typer.Option(help="Address to bind to; other than loopback needs --tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    tokens: Annotated[
        Path | None, typer.Option(help="File of tokens (`onlinecde tokens new`).")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Probability, or number of a regression, that raises an alarm, in the place of the model's own "
            "policy (`onlinecde alarms`)."
        ),
    ] = None,
    rearm: Annotated[
        float | None,
        typer.Option(
            help="It must have fallen below this before another alarm; default: as --threshold."
        ),
    ] = None,
    quiet: Annotated[
        float | None,
        typer.Option(min=0.0, help="Units of time after an alarm without another for that stream."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Units of time between looks for alarms between rows; default: at rows alone.",
        ),
    ] = None,
    output: Annotated[int, typer.Option(min=0, help="The output that is watched.")] = 0,
    horizon: Annotated[
        float | None,
        typer.Option(
            help="Of time to an event: how far ahead the risk looks that is watched, in units of time; default: as the "
            "model's policy or first answer."
        ),
    ] = None,
    alarms: Annotated[
        bool, typer.Option("--alarms/--no-alarms", help="Raise alarms by the policy.")
    ] = True,
    look_every: Annotated[
        float | None,
        typer.Option(
            help="Seconds between two rounds of looks between rows; default: a quarter of --every, 1 to 15."
        ),
    ] = None,
    lateness: Annotated[
        float,
        typer.Option(min=0.0, help="How late an event may come, in the model's unit of time."),
    ] = 0.0,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="The model is a new one: make all states again.")
    ] = False,
    keep: Annotated[
        float | None,
        typer.Option(min=0.0, help="Delete rows older than this before their stream's newest."),
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Delete rows received, and alarms raised, more than so many days ago."
        ),
    ] = None,
    forget_ended: Annotated[
        float | None,
        typer.Option(min=0.0, help="Delete streams whose end was told more than so many days ago."),
    ] = None,
    forget_idle: Annotated[
        float | None,
        typer.Option(min=0.0, help="Delete streams that no event has changed for so many days."),
    ] = None,
    evict_after: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds after which an idle stream leaves memory."),
    ] = 3600.0,
    most_streams: Annotated[
        int, typer.Option(min=1, help="No more streams than this.")
    ] = 1_000_000,
    time_unit: Annotated[
        str | None,
        typer.Option(
            help="What 1 is on the streams' clock: milliseconds, seconds, minutes, hours, days, weeks or years. "
            "Default: as trained."
        ),
    ] = None,
    clock_speed: Annotated[
        float, typer.Option(help="Seconds that pass on the streams in one second; for replays.")
    ] = 1.0,
    silent_after: Annotated[
        float | None,
        typer.Option(
            help="Units of time without a row after which a risk stands still; default: 24 hours, or 24 units "
            "where these are longer."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): serve HTTPS; with --tls-key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    insecure_http: Annotated[
        bool,
        typer.Option(
            "--insecure-http",
            help="Let others than this machine in without TLS: tokens can be read on the way.",
        ),
    ] = False,
    webhooks: Annotated[
        Path | None, typer.Option(help="File of servers that alarms are sent to (docs/live.md).")
    ] = None,
    plausible: Annotated[
        Path | None,
        typer.Option(
            help='Plausible values, as {"heart_rate": [20, 300]}; default: what the training data had.'
        ),
    ] = None,
    implausible: Annotated[
        str, typer.Option(help="What becomes of other values: mark (taken, and said so) or refuse.")
    ] = "mark",
    audit: Annotated[
        Path | None,
        typer.Option(
            help="Audit log, appended to; default: beside the store, as STORE.audit.jsonl."
        ),
    ] = None,
    session_hours: Annotated[
        float, typer.Option(min=0.01, help="How long a browser stays signed in.")
    ] = 12.0,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Allowed public host name, behind a proxy; repeatable.")
    ] = None,
    forwarded_by: Annotated[
        str | None,
        typer.Option(help="Address of the reverse proxy whose X-Forwarded-* are believed."),
    ] = None,
    resident: Annotated[
        int | None,
        typer.Option(
            min=1, help="Streams kept in memory; default 100,000. Others wait in the store."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting, as NAME=VALUE; repeatable."),
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            help="File of settings (TOML); ONLINECDE_NAME in the environment goes before it, --set before both.",
        ),
    ] = None,
    show_settings: Annotated[
        bool,
        typer.Option("--show-settings", help="Show all settings and what set them; serve nothing."),
    ] = False,
    title: Annotated[str, typer.Option(help="Shown on the page.")] = "onlinecde",
    page: Annotated[bool, typer.Option(help="Serve the monitor page.")] = True,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Log every request.")
    ] = False,
    connections: Annotated[
        int | None,
        typer.Option(
            min=1, help="Open connections at most; default: 4,096, or as many as open files allow."
        ),
    ] = None,
    header_bytes: Annotated[int, typer.Option(min=1024, help="Largest header of a request.")] = 32
    * 1024,
    header_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long a client may take to send a header.")
    ] = 10.0,
    body_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long a client may take to send a body.")
    ] = 30.0,
    idle_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, help="How long a connection may wait for a request, or an answer to be read."
        ),
    ] = 30.0,
) -> None:
    """Follow live streams: HTTP and WebSocket in, predictions and a monitor page out.

    Every acknowledged event is on disk. Stop it with Ctrl-C or SIGTERM; killed, it goes on where it was. SIGHUP
    reads the files of tokens and certificates again.
    """
    import signal

    if hasattr(signal, "SIGHUP"):  # until the tokens are read there is nothing to read again
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from onlinecde.serving import Limits, ServeSettings, TokenBook, create_app, serve_forever
    from onlinecde.serving.app import check_tokens
    from onlinecde.serving.every_setting import settings_given, shown_settings, with_settings
    from onlinecde.serving.opening import default_audit, open_engine, read_ranges
    from onlinecde.serving.problems import ServingError
    from onlinecde.serving.reloading import Reload, reload_tokens
    from onlinecde.serving.request_log import log_to_stderr
    from onlinecde.serving.running import bound, shown_address
    from onlinecde.serving.security import Access
    from onlinecde.serving.starting import Progress, StartingApp
    from onlinecde.serving.webhooks import read_targets

    log_to_stderr()
    wanted = ServeSettings(
        host=host,
        port=port,
        allow_hosts=tuple(allow_host or ()),
        clock_speed=clock_speed,
        silent_after=silent_after,
        look_every=look_every,
        title=title,
        page=page,
        keep=keep,
        keep_days=keep_days,
        forget_ended=forget_ended,
        forget_idle=forget_idle,
        evict_after=evict_after,
        log_requests=log_requests,
        audit=audit or default_audit(store),
        webhooks=() if webhooks is None else read_targets(webhooks),
        session_seconds=3600.0 * session_hours,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure_http=insecure_http,
        forwarded_by=forwarded_by,
        limits=Limits(
            connections=connections,
            header_bytes=header_bytes,
            header_seconds=header_seconds,
            body_seconds=body_seconds,
            idle_seconds=idle_seconds,
        ),
    )
    flags = {name: text for name, _, text in (one.partition("=") for one in set_ or ())}
    if resident is not None:
        flags["resident"] = str(resident)
    by_name = settings_given(flags, settings_file)
    wanted, engine_settings = with_settings(wanted, by_name)
    engine_settings = {
        "lateness": lateness,
        "most_streams": most_streams,
        "implausible": implausible,
        "plausible": None if plausible is None else read_ranges(plausible),
        **engine_settings,
    }
    if show_settings:
        typer.echo(shown_settings(wanted, engine_settings, by_name))
        return
    given = {
        "threshold": threshold,
        "rearm": rearm,
        "quiet": quiet,
        "every": every,
        "horizon": horizon,
    }
    changes = {name: number for name, number in given.items() if number is not None}
    if changes and not alarms:
        raise ServingError(f"--no-alarms and --{min(changes)} were given: give one of them.")
    if "threshold" in changes:
        changes["output"] = output
    book = None if tokens is None else TokenBook.read(tokens)
    # A start that fails must not have changed the store: what can be refused is refused before it is opened.
    check_tokens(wanted, book)
    reload = Reload(lambda: reload_tokens(book, tokens))

    def open_app(progress: Progress) -> Access:
        engine, settings = open_engine(
            model,
            store,
            wanted,
            time_unit=time_unit,
            policy_changes=changes,
            output=output,
            alarms=alarms,
            rebuild=rebuild,
            progress=progress,
            **engine_settings,
        )
        try:
            app = create_app(engine, settings, tokens=book, reload=reload)
        except BaseException:
            engine.close()
            raise
        if engine.policy is not None:
            typer.echo(engine.policy.words(settings.time_unit), err=True)
        typer.echo(f"{model} on {shown_address(settings)}, streams in {engine.store}", err=True)
        return app

    with bound(wanted) as listening:
        serve_forever(StartingApp(open_app), wanted, listening, reload=reload)
