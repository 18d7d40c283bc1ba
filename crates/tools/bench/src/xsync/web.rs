//! Apache with its access log, in a session and outside, and its clients outside.

use super::clients::{connect, free_port};
use super::session::{Host, let_others_enter, shell};
use crate::measuring::unavailable::need;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::NamedTempFile;

/// The classes of SPECweb99's static files: a name, a typical size, and the share of the requests.
pub const CLASSES: [(&str, usize, f64); 4] =
    [("0.5 KiB", 512, 0.35), ("5 KiB", 5 << 10, 0.5), ("50 KiB", 50 << 10, 0.14), ("500 KiB", 500 << 10, 0.01)];

const MODULES: &str = "/usr/lib/apache2/modules";

/// The load of one measurement.
#[derive(Clone, Copy)]
pub struct Requests {
    pub connections: usize,
    /// The class of all requests. None: of each class its share.
    pub class: Option<usize>,
    pub seconds: u32,
}

/// A server's files, in the volume that is kept or in a directory.
pub enum Way<'a> {
    Session(&'a Host),
    Outside(&'a Path),
}

impl Way<'_> {
    fn at(&self) -> PathBuf {
        match self {
            Way::Session(_) => "/data/web".into(),
            Way::Outside(dir) => dir.join("web"),
        }
    }

    fn host(&self) -> Option<&Host> {
        match self {
            Way::Session(host) => Some(host),
            Way::Outside(_) => None,
        }
    }

    /// Makes the files of a server.
    pub fn set_up(&self) -> Result<()> {
        let is_here = |name: &str| Command::new(name).arg("-v").output().is_ok();
        let both = is_here("apache2") && is_here("wrk") && Path::new(MODULES).exists();
        need(both, "Apache or wrk is missing: install the packages apache2-bin and wrk")?;
        if let Way::Outside(dir) = self {
            // Apache serves as a user without rights, who must be able to enter these directories.
            let_others_enter(dir)?;
        }
        let at = self.at();
        let at = at.display();
        let files: String =
            (0..CLASSES.len()).map(|n| format!("head -c {} /dev/zero >{at}/class{n}\n", CLASSES[n].1)).collect();
        let script = format!(
            "rm -rf {at}; mkdir {at}; chmod 755 {at}\n{files}cat >{at}/conf <<'END'\n\
             LoadModule mpm_event_module {MODULES}/mod_mpm_event.so\n\
             LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
             ServerName localhost\nServerRoot {at}\nDefaultRuntimeDir {at}\nPidFile {at}/pid\nUser www-data\nGroup www-data\n\
             StartServers 1\nServerLimit 1\nThreadsPerChild 64\nMaxRequestWorkers 64\nMinSpareThreads 1\nMaxSpareThreads 64\nMaxKeepAliveRequests 0\n\
             DocumentRoot {at}\nErrorLog {at}/errors\nLogFormat \"%h %t \\\"%r\\\" %>s %b\" lines\nCustomLog {at}/log lines\nEND\n"
        );
        let output = shell(self.host(), None, &script)?.output()?;
        ensure!(output.status.success(), "Apache's files: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Starts the server, lets its clients ask, and ends it. Returns the answers in a second.
    pub fn rate(&self, requests: Requests) -> Result<f64> {
        let port = free_port();
        let at = self.at();
        let at = at.display();
        let script = format!("rm -f {at}/log; exec apache2 -f {at}/conf -C 'Listen {port}' -D FOREGROUND");
        let mut shell = shell(self.host(), Some(port), &script)?;
        let server = Server(shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        drop(connect(port)?);
        let rate = ask(port, requests);
        drop(server);
        rate
    }
}

/// A running server, which is told to end when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The answers in a second that wrk counts.
fn ask(port: u16, requests: Requests) -> Result<f64> {
    let script = NamedTempFile::new()?;
    fs::write(script.path(), requests.script())?;
    let Requests { connections, seconds, .. } = requests;
    let mut wrk = Command::new("wrk");
    // A slow disk may hold an answer for seconds.
    wrk.args(["-t1", "--timeout", "60s", &format!("-c{connections}"), &format!("-d{seconds}s"), "-s"])
        .arg(script.path());
    let output = wrk.arg(format!("http://127.0.0.1:{port}/")).output().context("wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "Apache's answers are wrong: {text}");
    let rate = text.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok());
    rate.with_context(|| format!("wrk told no rate: {text}"))
}

impl Requests {
    /// The requests as wrk's script: of one class, or of all by a generator that always makes the same ones.
    fn script(self) -> String {
        let Some(class) = self.class else {
            let mut sum = 0.0;
            let limits: String = CLASSES
                .iter()
                .enumerate()
                .map(|(n, (_, _, share))| {
                    sum += share;
                    format!("  if r < {sum:.2} then return wrk.format('GET', '/class{n}') end\n")
                })
                .collect();
            return format!(
                "math.randomseed(7)\nrequest = function()\n  local r = math.random()\n{limits}  return wrk.format('GET', '/class0')\nend\n"
            );
        };
        format!("request = function() return wrk.format('GET', '/class{class}') end\n")
    }
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, Requests};

    #[test]
    fn each_class_has_its_share() {
        assert!((CLASSES.iter().map(|(_, _, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
        let script = Requests { connections: 1, class: None, seconds: 1 }.script();
        for limit in ["r < 0.35", "r < 0.85", "r < 0.99", "r < 1.00"] {
            assert!(script.contains(limit), "{script}");
        }
    }
}
