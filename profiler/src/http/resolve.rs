//! Addresses of a host: `/etc/hosts`, then the name servers of `/etc/resolv.conf`. glibc's resolver is not used, because the
//! released program is linked statically: the resolver would load the modules of nsswitch.conf, which are of the host's glibc.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use heapbpf_linux::files;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use tokio::net::UdpSocket;
use tokio::time::timeout;

const HOSTS: &str = "/etc/hosts";
const CONFIGURATION: &str = "/etc/resolv.conf";
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Limits and defaults of resolv.conf(5).
const SERVERS_MAX: usize = 3;
const SEARCHED_MAX: usize = 6;
const NDOTS_DEFAULT: usize = 1;
const NDOTS_MAX: usize = 15;
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 4096;
const DNS_PORT: u16 = 53;

pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let with_port = |addresses: Vec<IpAddr>| addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    if let Ok(address) = host.parse() {
        return Ok(with_port(vec![address]));
    }
    let read = |path| files::read_text(Path::new(path), FILE_BYTES_MAX).unwrap_or_default();
    let mut known = of_hosts(&read(HOSTS), host);
    if known.is_empty() && host.eq_ignore_ascii_case("localhost") {
        known = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    if !known.is_empty() {
        return Ok(with_port(known));
    }
    let configuration = Configuration::parse(&read(CONFIGURATION));
    let mut failure = "no such host".to_owned();
    for name in configuration.names(host) {
        for server in &configuration.servers {
            match query(*server, &name).await {
                Ok(addresses) if !addresses.is_empty() => return Ok(with_port(addresses)),
                Ok(_) => break,
                Err(error) => failure = format!("name server {server}: {error}"),
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, failure))
}

fn of_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    });
    lines.collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Configuration {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
}

impl Configuration {
    fn parse(text: &str) -> Self {
        let mut found = Self { servers: Vec::new(), search: Vec::new(), ndots: NDOTS_DEFAULT };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    found.servers.extend(address.map(|address| SocketAddr::new(address, DNS_PORT)));
                }
                Some("search" | "domain") => found.search = words.take(SEARCHED_MAX).map(str::to_owned).collect(),
                Some("options") => {
                    let ndots = words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok()).next_back();
                    found.ndots = ndots.map_or(found.ndots, |ndots: usize| ndots.min(NDOTS_MAX));
                }
                _ => {}
            }
        }
        found.servers.truncate(SERVERS_MAX);
        if found.servers.is_empty() {
            found.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS_PORT));
        }
        found
    }

    /// Names to query for, in order. A name with few dots is first searched for in the domains.
    fn names(&self, host: &str) -> Vec<String> {
        if let Some(absolute) = host.strip_suffix('.') {
            return vec![absolute.to_owned()];
        }
        let mut names: Vec<_> =
            self.search.iter().map(|domain| format!("{host}.{}", domain.trim_matches('.'))).collect();
        let dots = host.matches('.').count();
        names.insert(if dots >= self.ndots { 0 } else { names.len() }, host.to_owned());
        names
    }
}

/// Requests addresses of both kinds; fails if neither question is answered.
async fn query(server: SocketAddr, name: &str) -> io::Result<Vec<IpAddr>> {
    let (v4, v6) = tokio::join!(ask(server, name, TYPE::A), ask(server, name, TYPE::AAAA));
    match (v4, v6) {
        (Err(error), Err(_)) => Err(error),
        (v4, v6) => Ok(v4.into_iter().chain(v6).flatten().collect()),
    }
}

async fn ask(server: SocketAddr, name: &str, kind: TYPE) -> io::Result<Vec<IpAddr>> {
    let id = random_id();
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question(id, name, kind)?).await?;
    let answered = async {
        let mut bytes = [0; ANSWER_BYTES_MAX];
        loop {
            let length = socket.recv(&mut bytes).await?;
            if let Some(answer) = answer(id, &bytes[..length]) {
                return answer;
            }
        }
    };
    timeout(ANSWER_TIME_MAX, answered).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn question(id: u16, name: &str, kind: TYPE) -> io::Result<Vec<u8>> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "not a valid name of a host");
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(invalid)?;
    packet.questions.push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(invalid)
}

/// Addresses in an answer; `None` if the message does not answer this question. Aliases precede the addresses of the names that
/// they stand for.
fn answer(id: u16, bytes: &[u8]) -> Option<io::Result<Vec<IpAddr>>> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return None;
    }
    let address = |data: &RData<'_>| match data {
        RData::A(a) => Some(IpAddr::V4(a.address.into())),
        RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.address.into())),
        _ => None,
    };
    Some(match packet.rcode() {
        RCODE::NoError => Ok(packet.answers.iter().filter_map(|record| address(&record.rdata)).collect()),
        RCODE::NameError => Ok(Vec::new()),
        code => Err(io::Error::other(format!("{code:?}"))),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "any 16 bits")]
fn random_id() -> u16 {
    RandomState::new().hash_one(0) as u16
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, AAAA, CNAME};

    use super::*;

    #[test]
    fn hosts_and_configuration_are_parsed() {
        let hosts = "127.0.0.1 localhost\n# 1.2.3.4 db\n10.0.0.7\tDB db.local # primary\nfe80::1 db\nx y\n";
        let addresses: Vec<IpAddr> = ["10.0.0.7", "fe80::1"].map(|text| text.parse().expect("an address")).into();
        assert_eq!(of_hosts(hosts, "db"), addresses);
        assert_eq!(of_hosts(hosts, "primary"), [] as [IpAddr; 0]);
        let text =
            "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local\noptions timeout:1 ndots:5\n";
        let configuration = Configuration::parse(text);
        assert_eq!(configuration.servers, ["10.96.0.10:53".parse().expect("an address")]);
        let expected = ["parca.obs.shop.svc.cluster.local", "parca.obs.svc.cluster.local", "parca.obs"];
        assert_eq!(configuration.names("parca.obs"), expected);
        assert_eq!(configuration.names("parca.example."), ["parca.example"]);
        let configuration = Configuration::parse("search example\n");
        assert_eq!(configuration.servers, ["127.0.0.1:53".parse().expect("an address")]);
        assert_eq!(configuration.names("a.b"), ["a.b", "a.b.example"]);
        assert_eq!(configuration.names("a"), ["a.example", "a"]);
    }

    #[test]
    fn answers_are_addresses_behind_aliases() {
        let bytes = question(7, "p.example", TYPE::A).expect("a name");
        let mut packet = Packet::parse(&bytes).expect("valid").into_reply();
        let name = |text: &'static str| Name::new(text).expect("a name");
        let records = [
            (name("p.example"), RData::CNAME(CNAME(name("q.example")))),
            (name("q.example"), RData::A(A { address: 0x0a00_0001 })),
            (name("q.example"), RData::AAAA(AAAA { address: 1 })),
        ];
        packet.answers.extend(records.map(|(name, data)| ResourceRecord::new(name, CLASS::IN, 10, data)));
        let bytes = packet.build_bytes_vec().expect("valid");
        let expected: Vec<IpAddr> = ["10.0.0.1", "::1"].map(|text| text.parse().expect("an address")).into();
        assert_eq!(answer(7, &bytes).expect("for this question").expect("found"), expected);
        assert!(answer(8, &bytes).is_none() && answer(7, &bytes[..9]).is_none());
        assert!(answer(7, &question(7, "p", TYPE::A).expect("a name")).is_none(), "a question answers nothing");
        assert!(question(7, &"x".repeat(300), TYPE::A).is_err());
    }

    #[tokio::test]
    async fn addresses_and_localhost_need_no_server() {
        let found = resolve("::1", 80).await.expect("an address");
        assert_eq!(found, ["[::1]:80".parse().expect("an address")]);
        let found = resolve("localhost", 80).await.expect("known");
        assert!(found.iter().all(|address| address.ip().is_loopback()) && !found.is_empty());
    }

    #[tokio::test]
    async fn a_server_is_asked_for_both_kinds() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let server = socket.local_addr().expect("bound");
        let serve = async {
            for _ in 0..2 {
                let mut bytes = [0; 512];
                let (length, from) = socket.recv_from(&mut bytes).await.expect("a question");
                let mut reply = Packet::parse(&bytes[..length]).expect("valid").into_reply();
                if reply.questions[0].qtype == TYPE::A.into() {
                    let name = reply.questions[0].qname.clone();
                    reply.answers.push(ResourceRecord::new(name, CLASS::IN, 1, RData::A(A { address: 0x7f00_0002 })));
                } else {
                    *reply.rcode_mut() = RCODE::ServerFailure;
                }
                socket.send_to(b"noise", from).await.expect("sent");
                socket.send_to(&reply.build_bytes_vec().expect("valid"), from).await.expect("sent");
            }
        };
        let (found, ()) = tokio::join!(query(server, "p.example"), serve);
        assert_eq!(found.expect("one was answered"), [IpAddr::from([127, 0, 0, 2])]);
    }
}
