//! Runs a session without one of its invariants, for the tests: `careless INVARIANT VOLUME MAPS PROGRAM…`.
//!
//! INVARIANT is the name of a field of `Cares`, or `all`. VOLUME is a volume; or a directory with a slash at its end,
//! for a volume that is thrown away; or `on:` and a directory. `UNTORN_XSYNC_LISTEN` is a port, and
//! `UNTORN_XSYNC_EXACT` stands for `--exact`.

use std::process::ExitCode;
use untorn_terminal::user_namespace::is_root;
use untorn_xsync::cares::Cares;
use untorn_xsync::commands::place_layers;
use untorn_xsync::commands::run_on;
use untorn_xsync::commands::run_session::Wanted;
use untorn_xsync::filter::syscall_filter::Maps;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = || arguments.next().expect("an argument").into_string().expect("UTF-8");
    let (care, volume, maps) = (next(), next(), next());
    let cares = if care == "all" { Cares::ALL } else { Cares::without(&care).expect("the name of a care") };
    let maps = match maps.as_str() {
        "refuse" => Maps::Refuse,
        "strict" => Maps::Strict,
        _ => Maps::Allow,
    };
    let mut wanted = Wanted { cares, maps, bytes: 64 << 20, ..Wanted::new(arguments.collect()) };
    wanted.exact = std::env::var_os("UNTORN_XSYNC_EXACT").is_some();
    if let Ok(port) = std::env::var("UNTORN_XSYNC_LISTEN") {
        wanted.listen = vec![format!("127.0.0.1:{port}").parse().expect("a port")];
    }
    if volume.ends_with('/') {
        wanted.place = volume.clone().into();
    } else {
        wanted.volume = Some((volume.clone().into(), None));
    }
    let done = match volume.strip_prefix("on:") {
        Some(dir) => run_on::run(&wanted, dir.as_ref()),
        None if is_root() => wanted.run(),
        None => place_layers::run(&wanted),
    };
    match done {
        Ok(code) => code.into(),
        Err(e) => {
            eprintln!("careless: {e:#}");
            ExitCode::from(125)
        }
    }
}
