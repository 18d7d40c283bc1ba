//! Figures that Prometheus fetches.

use crate::Failure;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The type of the text.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// The longest wait for a client.
const CLIENT_WAIT: Duration = Duration::from_secs(5);

/// Answers every request with a new text, in a thread of its own. Returns the address, with its port.
///
/// # Errors
/// The address is taken, or not this machine's.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> Result<SocketAddr, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot serve figures at {address}: {e}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    let serve = move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &text);
        }
    };
    std::thread::Builder::new().name("figures".into()).spawn(serve).map_err(failed)?;
    Ok(at)
}

fn answer(mut stream: TcpStream, text: &impl Fn() -> String) -> std::io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_WAIT))?;
    // For the whole request: other clients wait.
    let start = Instant::now();
    let (mut request, mut buf) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        let left = CLIENT_WAIT.saturating_sub(start.elapsed());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut buf)? {
            _ if left.is_zero() => return Err(std::io::ErrorKind::TimedOut.into()),
            0 => break,
            n => request.extend_from_slice(&buf[..n]),
        }
    }
    let text = text();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {KIND}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}
