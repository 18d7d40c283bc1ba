//! The session's network, made by its first process before the program starts.

use crate::control::{Control, News, Takes};
use crate::network::outgoing_rules;
use anyhow::{Context, Result};
use rustix::net::sockopt::set_ipv6_v6only;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What a session may say to addresses outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Net {
    /// Connections and datagrams leave after a commit
    #[default]
    Gated,
    /// There is no way out
    None,
}

/// For people: what becomes of what the program says to others.
pub fn explain_net(net: Net) -> String {
    let how = match net {
        Net::Gated => "TCP and UDP leave after a commit, answers pass at once; all else is refused",
        Net::None => "none, besides clients of --listen",
    };
    format!("  {:<40} {how}\n", "addresses outside")
}

/// What the session's network has to know of the host's.
#[derive(Clone, Debug, Default)]
pub struct HostNetwork {
    prefixes6: Vec<(Ipv6Addr, u8)>,
    resolvers: Vec<IpAddr>,
}

/// Of the supervisor's sockets in a session's network. Nobody else has a port there yet.
const PORT: u16 = 1;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

impl HostNetwork {
    /// Looks at the network of this process: IPv6 leads where the host has routes, so that a program finds out at once
    /// what cannot be reached.
    pub fn look() -> HostNetwork {
        let routes = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
        let resolvers = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        HostNetwork { prefixes6: prefixes(&routes), resolvers: loopback_resolvers(&resolvers) }
    }
}

/// Prefixes of a table as `/proc/net/ipv6_route` writes it, without what stays on a link and what is refused.
fn prefixes(table: &str) -> Vec<(Ipv6Addr, u8)> {
    const REFUSED: u32 = 0x200;
    let mut found: Vec<(Ipv6Addr, u8)> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let address = Ipv6Addr::from_bits(u128::from_str_radix(fields.first()?, 16).ok()?);
            let bits = u8::from_str_radix(fields.get(1)?, 16).ok()?;
            let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
            let inside = address.is_loopback() || address.is_unicast_link_local() || address.is_multicast();
            (flags & REFUSED == 0 && !inside).then_some((address, bits))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Resolvers that only the host itself can reach, of a text as `/etc/resolv.conf` has it.
fn loopback_resolvers(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut found: Vec<IpAddr> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    if found.is_empty() {
        // As the C library has it.
        found.push(Ipv4Addr::LOCALHOST.into());
    }
    found.retain(IpAddr::is_loopback);
    found
}

/// Opens the way out, in the session's network, which this process is in: sockets that take what goes out, for the
/// supervisor.
pub fn open(host: &HostNetwork, control: &Control) -> Result<()> {
    outgoing_rules::redirect(PORT, &host.resolvers)?;
    for (ip, takes) in [
        (IpAddr::from(Ipv4Addr::UNSPECIFIED), Takes::Connections),
        (IpAddr::from(Ipv6Addr::UNSPECIFIED), Takes::Connections),
        (IpAddr::from(Ipv4Addr::UNSPECIFIED), Takes::Datagrams),
        (IpAddr::from(Ipv6Addr::UNSPECIFIED), Takes::Datagrams),
    ] {
        if ip.is_ipv4() || !host.prefixes6.is_empty() {
            let socket = taking(SocketAddr::new(ip, PORT), takes).context("a socket for what goes out")?;
            control.send(&News::WayOut(takes), Some(socket.as_fd()))?;
        }
    }
    outgoing_rules::add_routes(&host.prefixes6)
}

fn taking(address: SocketAddr, takes: Takes) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = if takes == Takes::Connections { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    be_transparent(&socket, address.ip())?;
    bind(&socket, &address)?;
    match (takes, address.ip()) {
        (Takes::Connections, _) => listen(&socket, BACKLOG)?,
        // Whom a datagram is for is asked for.
        (_, IpAddr::V4(_)) => set_option(&socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR, 1)?,
        (_, IpAddr::V6(_)) => set_option(&socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)?,
    }
    Ok(socket)
}

/// Lets a socket have addresses that are not this network's.
pub fn be_transparent(socket: &OwnedFd, like: IpAddr) -> io::Result<()> {
    match like {
        IpAddr::V4(_) => set_option(socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1),
        IpAddr::V6(_) => set_option(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Sets an option of a socket that is a number.
pub fn set_option(socket: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let (value, size) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: `value` is what the call reads, and outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_lead_outside_are_found() {
        let none = "00000000000000000000000000000000 00 0 00 0 ffffffff 00000001 00000000 00200200       lo\n\
                    00000000000000000000000000000001 80 0 00 0 00000000 00000002 00000000 80200001       lo\n\
                    fe800000000000000000000000000000 40 0 00 0 00000100 00000001 00000000 00000001     eth0\n";
        assert_eq!(prefixes(none), []);
        let some = "20010db8000700000000000000000000 40 0 00 0 00000100 00000001 00000000 00000001     eth0\n";
        assert_eq!(prefixes(some), [("2001:db8:7::".parse().unwrap(), 64)]);
    }

    #[test]
    fn resolvers_of_the_host_alone_are_found() {
        assert_eq!(loopback_resolvers("nameserver 127.0.0.53\nnameserver 9.9.9.9"), [IpAddr::from([127, 0, 0, 53])]);
        assert_eq!(loopback_resolvers("# none\n"), [IpAddr::from([127, 0, 0, 1])]);
        assert_eq!(loopback_resolvers("nameserver 9.9.9.9"), Vec::<IpAddr>::new());
    }
}
