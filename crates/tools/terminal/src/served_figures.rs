//! Figures that Prometheus fetches.

use crate::Failure;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The type of the text.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest request.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
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
    stream.set_read_timeout(Some(CLIENT_WAIT))?;
    stream.set_write_timeout(Some(CLIENT_WAIT))?;
    let lines = BufReader::new(stream.try_clone()?.take(REQUEST_BYTES_MAX)).lines();
    for line in lines {
        if line?.is_empty() {
            break;
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
