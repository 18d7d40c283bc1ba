//! Rules of the session's network that lead all outgoing traffic to sockets of the supervisor.
//!
//! Each packet keeps the address that it was sent to.
//!
//! A route of the kind `local` makes every address one of the session's loopback, and nf_tables passes packets that
//! arrive there for other addresses to the supervisor's sockets (`tproxy`). Addresses are not changed, and no
//! connection is tracked.

use crate::network::netlink::{Attributes, Messages};
use anyhow::{Context, Result};
use rustix::net::netlink::NETFILTER;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The session's own IPv4 address, besides its loopback. It is reserved for documentation, so no host outside has it.
pub const OWN4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The session's own IPv6 address, reserved in the same way.
pub const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The interface index of the loopback in a new network.
const LOOPBACK_INDEX: u32 = 1;
const DNS: u16 = 53;
const NEW: i32 = libc::NLM_F_ACK | libc::NLM_F_CREATE;

/// Adds routes that make all IPv4 addresses, and these IPv6 prefixes, local to the session.
pub fn add_routes(prefixes6: &[(Ipv6Addr, u8)]) -> Result<()> {
    let mut messages = Messages::default();
    address(&mut messages, OWN4.into());
    route(&mut messages, Ipv4Addr::UNSPECIFIED.into(), 0, OWN4.into());
    if !prefixes6.is_empty() {
        address(&mut messages, OWN6.into());
        // The kernel adds this route itself, but for IPv6 only later, by a worker. Until then, datagrams that come for
        // the address are lost.
        route(&mut messages, OWN6.into(), 128, OWN6.into());
    }
    messages.send(None).context("the session's addresses")?;
    for (prefix, bits) in prefixes6 {
        let mut messages = Messages::default();
        route(&mut messages, (*prefix).into(), *bits, OWN6.into());
        messages.send(None).with_context(|| format!("the session's route for {prefix}/{bits}"))?;
    }
    Ok(())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn address(messages: &mut Messages, own: IpAddr) {
    let bits = if own.is_ipv4() { 32 } else { 128 };
    let mut fixed = vec![family(own), bits, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
    fixed.extend_from_slice(&LOOPBACK_INDEX.to_ne_bytes());
    let attributes = Attributes::default().with(libc::IFA_LOCAL, &octets(own)).with(libc::IFA_ADDRESS, &octets(own));
    messages.push(libc::RTM_NEWADDR, NEW, &fixed, attributes);
}

fn route(messages: &mut Messages, to: IpAddr, bits: u8, source: IpAddr) {
    let (table, protocol) = (libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC);
    let mut fixed = vec![family(to), bits, 0, 0, table, protocol, libc::RT_SCOPE_HOST, libc::RTN_LOCAL];
    fixed.extend_from_slice(&0_u32.to_ne_bytes());
    let mut attributes = Attributes::default();
    if bits > 0 {
        attributes = attributes.with(libc::RTA_DST, &octets(to));
    }
    let attributes =
        attributes.with(libc::RTA_PREFSRC, &octets(source)).with(libc::RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes());
    messages.push(libc::RTM_NEWROUTE, NEW, &fixed, attributes);
}

/// Passes TCP and UDP traffic to other addresses to the supervisor's sockets at this port.
///
/// All other traffic that is not for the session itself is refused to the sender. Traffic to port 53 of a resolver at a
/// loopback address of the host is passed on, too.
pub fn redirect(port: u16, resolvers: &[IpAddr]) -> Result<()> {
    let mut messages = Messages::default();
    let batch = [0, 0, 0, libc::NFNL_SUBSYS_NFTABLES as u8];
    messages.push(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, &batch, Attributes::default());
    for own in [IpAddr::from(OWN4), IpAddr::from(OWN6)] {
        let mut rules = Rules { messages: &mut messages, family: family(own) };
        rules.table();
        rules.chain(ARRIVING, 0, -150);
        rules.chain(LEAVING, 3, 0);
        let resolvers = resolvers.iter().filter(|resolver| resolver.is_ipv4() == own.is_ipv4());
        for resolver in resolvers {
            let to_it = [to(*resolver), destination_port(DNS), to_socket(port, own)].concat();
            rules.rule(ARRIVING, &to_it);
        }
        for chain in [ARRIVING, LEAVING] {
            let loopback = if own.is_ipv4() { to_loopback4() } else { to(Ipv6Addr::LOCALHOST.into()) };
            rules.rule(chain, &[loopback, vec![verdict(libc::NF_ACCEPT)]].concat());
            rules.rule(chain, &[to(own), vec![verdict(libc::NF_ACCEPT)]].concat());
        }
        rules.rule(ARRIVING, &to_socket(port, own));
        rules.rule(ARRIVING, &[verdict(libc::NF_DROP)]);
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            rules.rule(LEAVING, &[protocol_is(protocol as u8), vec![verdict(libc::NF_ACCEPT)]].concat());
        }
        rules.rule(LEAVING, &[verdict(libc::NF_DROP)]);
    }
    messages.push(libc::NFNL_MSG_BATCH_END as u16, 0, &batch, Attributes::default());
    messages.send(Some(NETFILTER)).context("the kernel has no nf_tables with tproxy")
}

const TABLE: &str = "untorn-xsync";
const ARRIVING: &str = "arriving";
const LEAVING: &str = "leaving";

struct Rules<'a> {
    messages: &'a mut Messages,
    family: u8,
}

impl Rules<'_> {
    fn push(&mut self, kind: i32, attributes: Attributes) {
        let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | kind) as u16;
        self.messages.push(kind, NEW | libc::NLM_F_APPEND, &[self.family, 0, 0, 0], attributes);
    }

    fn table(&mut self) {
        self.push(libc::NFT_MSG_NEWTABLE, Attributes::default().with_text(1, TABLE));
    }

    fn chain(&mut self, name: &str, hook: u32, priority: i32) {
        let hook = Attributes::default().with_number(1, hook).with_number(2, priority as u32);
        let attributes = Attributes::default().with_text(1, TABLE).with_text(3, name).with_nested(4, hook);
        self.push(libc::NFT_MSG_NEWCHAIN, attributes.with_text(7, "filter"));
    }

    fn rule(&mut self, chain: &str, expressions: &[Expression]) {
        let list = expressions.iter().fold(Attributes::default(), |list, (name, data)| {
            list.with_nested(1, Attributes::default().with_text(1, name).with_nested(2, data.clone()))
        });
        let attributes = Attributes::default().with_text(1, TABLE).with_text(2, chain).with_nested(4, list);
        self.push(libc::NFT_MSG_NEWRULE, attributes);
    }
}

/// An expression of nf_tables: its name and its attributes.
type Expression = (&'static str, Attributes);

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const REGISTER: u32 = 1;
const LAYER_4_PROTOCOL: u32 = 16;

fn equal(value: &[u8]) -> Expression {
    let data = Attributes::default().with(1, value);
    ("cmp", Attributes::default().with_number(1, REGISTER).with_number(2, 0).with_nested(3, data))
}

fn field(header: u32, at: u32, value: &[u8]) -> Vec<Expression> {
    let load = Attributes::default().with_number(1, REGISTER).with_number(2, header).with_number(3, at);
    vec![("payload", load.with_number(4, value.len() as u32)), equal(value)]
}

fn to(address: IpAddr) -> Vec<Expression> {
    field(NETWORK_HEADER, if address.is_ipv4() { 16 } else { 24 }, &octets(address))
}

fn to_loopback4() -> Vec<Expression> {
    field(NETWORK_HEADER, 16, &[127])
}

fn destination_port(port: u16) -> Vec<Expression> {
    field(TRANSPORT_HEADER, 2, &port.to_be_bytes())
}

fn protocol_is(protocol: u8) -> Vec<Expression> {
    vec![("meta", Attributes::default().with_number(1, REGISTER).with_number(2, LAYER_4_PROTOCOL)), equal(&[protocol])]
}

fn verdict(verdict: i32) -> Expression {
    let code = Attributes::default().with_number(1, verdict as u32);
    ("immediate", Attributes::default().with_number(1, 0).with_nested(2, Attributes::default().with_nested(2, code)))
}

fn to_socket(port: u16, like: IpAddr) -> Vec<Expression> {
    let value = Attributes::default().with(1, &port.to_be_bytes());
    let load = Attributes::default().with_number(1, REGISTER).with_nested(2, value);
    let socket = Attributes::default().with_number(1, family(like).into()).with_number(3, REGISTER);
    vec![("immediate", load), ("tproxy", socket), verdict(libc::NF_ACCEPT)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::path::Path;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    /// Sends a datagram to each own address of a new network. False if such a network cannot be had.
    fn own_addresses_are_reached_at_once() -> bool {
        // SAFETY: no descriptor of this thread is concerned.
        let own = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        if own.is_err() || !Command::new("ip").args(["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success()) {
            return false;
        }
        let prefixes6 = [(Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 0), 64)];
        let (prefixes6, own) = match Path::new("/proc/net/if_inet6").exists() {
            true => (&prefixes6[..], vec![IpAddr::from(OWN4), IpAddr::from(OWN6)]),
            false => (&prefixes6[..0], vec![IpAddr::from(OWN4)]),
        };
        add_routes(prefixes6).unwrap();
        for own in own {
            let socket = UdpSocket::bind((own, 0)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket.send_to(b"?", socket.local_addr().unwrap()).unwrap();
            socket.recv(&mut [0]).unwrap_or_else(|e| panic!("lost on the way to {own}: {e}"));
        }
        true
    }

    #[test]
    fn nothing_is_lost_on_the_way_to_own_addresses() {
        for _ in 0..30 {
            if !thread::spawn(own_addresses_are_reached_at_once).join().unwrap() {
                return println!("skipped: needs root and the program ip");
            }
        }
    }
}
