//! Sets up the session's network, in the session's first process, before the program starts.

use crate::control::{Control, News, Takes};
use crate::network::outgoing_rules;
use anyhow::{Context, Result};
use rustix::net::sockopt::set_ipv6_v6only;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The traffic that a session may send to addresses outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Net {
    /// Connections and datagrams leave after a commit
    #[default]
    Gated,
    /// Nothing leaves, except answers to clients of --listen
    None,
}

/// A line for people about traffic to addresses outside.
pub fn explain_net(net: Net) -> String {
    let how = match net {
        Net::Gated => "TCP and UDP leave after a commit, answers pass at once; all else is refused",
        Net::None => "none, besides clients of --listen",
    };
    format!("  {:<40} {how}\n", "addresses outside")
}

/// Facts about the host's network that the session's network depends on.
#[derive(Clone, Debug, Default)]
pub struct HostNetwork {
    prefixes6: Vec<(Ipv6Addr, u8)>,
    resolvers: Vec<IpAddr>,
}

/// The port of the supervisor's sockets in a session's network, where no port is in use yet.
const PORT: u16 = 1;
/// The most connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

impl HostNetwork {
    /// Reads the facts from the network of this process.
    ///
    /// Only IPv6 prefixes to which the host has routes lead out, so that a program learns at once that an address is
    /// unreachable.
    pub fn look() -> HostNetwork {
        let routes = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
        let resolvers = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        HostNetwork { prefixes6: prefixes(&routes), resolvers: loopback_resolvers(&resolvers) }
    }
}

/// The prefixes in a table in the format of `/proc/net/ipv6_route`, without those that stay on a link or are refused.
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

/// The resolvers in a text like `/etc/resolv.conf` that only the host itself can reach.
fn loopback_resolvers(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut found: Vec<IpAddr> = lines.filter_map(|line| line.trim().parse().ok()).collect();
    if found.is_empty() {
        // The default of the C library.
        found.push(Ipv4Addr::LOCALHOST.into());
    }
    found.retain(IpAddr::is_loopback);
    found
}

/// Sets the rules, sends the supervisor the sockets that take outgoing traffic, and adds the routes. This process must
/// be in the session's network.
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
        // Makes the kernel add to each datagram the address that it was sent to.
        (_, IpAddr::V4(_)) => set_option(&socket, libc::SOL_IP, libc::IP_RECVORIGDSTADDR, 1)?,
        (_, IpAddr::V6(_)) => set_option(&socket, libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)?,
    }
    Ok(socket)
}

/// Allows a socket to use addresses that are not this network's.
pub fn be_transparent(socket: &OwnedFd, like: IpAddr) -> io::Result<()> {
    match like {
        IpAddr::V4(_) => set_option(socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1),
        IpAddr::V6(_) => set_option(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Sets a numeric option of a socket.
pub fn set_option(socket: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let (value, size) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: the call reads `value`, which outlives the call.
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
