//! A session on an existing directory (`--on DIR`), whose file system has data in its journal.

use crate::commands::run_session::{Wanted, resolver_dir};
use crate::host::host_mounts::HostMounts;
use crate::host::host_view::{OWN, View, mounts_of_the_host};
use crate::host::outer_streams::{tell, tell_text};
use crate::host::private_mounts::private_mounts;
use crate::invariant::OUTSIDE_READERS_WAIT;
use crate::network::session_network::explain_net;
use crate::relays::listen::Port;
use crate::report::session_report::Report;
use crate::report::status_socket::StatusSocket;
use crate::session::supervisor::{self, Ended, Job};
use crate::session::watcher::Watcher;
use crate::view::on_directory::OnDirectory;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::sync::Arc;
use untorn_os::holds;

/// Runs the session and returns the exit code.
pub fn run(wanted: &Wanted, dir: &Path) -> Result<u8> {
    let cwd = std::env::current_dir().context("the working directory")?;
    ensure!(
        !wanted.exact,
        "--exact needs an overlay, but with --on other programs read and change {0} at the same time, which an overlay \
         forbids: leave out --exact, or use a volume (--volume FILE)",
        dir.display()
    );
    let on = OnDirectory::open(dir)?;
    let ports = Arc::new(wanted.listen.iter().copied().map(Port::take).collect::<Result<Vec<_>>>()?);
    let host_mounts = HostMounts::look(vec![on.dir().to_owned(), cwd.clone()])?;
    let scratch = private_mounts()?;
    let mount = Arc::new(on.mount()?);
    let hidden = OWN.iter().any(|own| cwd.starts_with(own)) && !cwd.starts_with(on.dir());
    let view = View {
        scratch: scratch.clone(),
        shown: mounts_of_the_host(&scratch)?,
        written: Vec::new(),
        data: None,
        exact: None,
        on: Some((mount.clone(), on.dir().to_owned())),
        also: hidden.then(|| cwd.clone()).into_iter().chain(resolver_dir()).collect(),
        cwd,
    };
    if wanted.explain {
        tell_text(&(view.explain() + &explain_net(wanted.net)));
    }
    let committer = Committer::on(on.ground(), &scratch, wanted.commits)?;
    committer.commit()?;
    let watcher = holds(OUTSIDE_READERS_WAIT).then(|| Watcher::hold(on.dir(), &mount)).transpose()?;
    drop(mount);
    let words: Vec<_> = wanted.command.iter().map(|word| word.to_string_lossy()).collect();
    let report = Report {
        pid: std::process::id(),
        command: words.join(" "),
        volume: on.dir().display().to_string(),
        ..Report::default()
    };
    let (command, maps) = (wanted.command.clone(), wanted.maps);
    let job = Job { command, view, maps, exact: false, net: wanted.net, ports, report, watcher, host_mounts };
    let (ended, committer) = supervisor::run(job, committer, StatusSocket::bind()?)?;
    committer.close()?;
    if wanted.summary {
        tell(&ended.report);
    }
    if !ended.durable {
        tell_what_is_lost(&ended, &on);
    }
    Ok(ended.code)
}

fn tell_what_is_lost(ended: &Ended, on: &OnDirectory) {
    let held = match ended.lost_bytes {
        0 => "No output was held back.".to_owned(),
        bytes => format!("{bytes} bytes of output were held back, and nobody has seen them."),
    };
    tell(format_args!(
        "the session was ended, because the file system of {} failed. {held} When the disk works again and the file \
         system was checked (`e2fsck`), it has everything that was shown. Newer data is in memory until the file \
         system is unmounted: copy it before that.",
        on.dir().display()
    ));
}
