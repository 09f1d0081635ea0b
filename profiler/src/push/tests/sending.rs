//! Tests of requests to servers on a local port.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::push::client::{Answer, Client, Failure};

/// Time limits for servers that do not answer, and for those that do, on busy machines too.
const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn client(address: SocketAddr, time_max: Duration) -> Client {
    let endpoint = format!("pyroscope+http://{address}").parse().expect("a URL");
    Client::new(endpoint, vec!["X-Scope-OrgID: tenant".parse().expect("a header")], None, time_max)
}

async fn post(client: &mut Client) -> Result<Answer, Failure> {
    client.post(&Bytes::from_static(b"body")).await
}

/// Reads a request with a body of 4 bytes; returns its head in lower case.
async fn receive(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"body") {
        let mut part = [0; 1024];
        let length = stream.read(&mut part).await.expect("connected");
        assert_ne!(length, 0, "the request is complete");
        bytes.extend(&part[..length]);
    }
    String::from_utf8_lossy(&bytes).to_lowercase()
}

#[tokio::test]
async fn a_connection_is_used_again_and_replaced_when_the_server_closes_it() {
    let (listener, address) = listen().await;
    let server = tokio::spawn(async move {
        let mut heads = Vec::new();
        for requests in [2, 1] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            for _ in 0..requests {
                heads.push(receive(&mut stream).await);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.expect("connected");
            }
        }
        heads
    });
    let mut client = client(address, LONG);
    for _ in 0..3 {
        let answer = post(&mut client).await.expect("answered");
        assert_eq!((answer.status.as_u16(), answer.body.as_slice()), (200, b"{}".as_slice()));
    }
    let heads = server.await.expect("no panic");
    for head in heads {
        assert!(head.starts_with("post /push.v1.pusherservice/push http/1.1\r\n"), "{head}");
        for header in ["x-scope-orgid: tenant", "content-type: application/proto", "connect-protocol-version: 1"] {
            assert!(head.contains(header), "{head}");
        }
        assert!(head.contains(&format!("host: {address}")) && head.contains("user-agent: heapbpf/"), "{head}");
    }
}

#[tokio::test]
async fn a_request_ends_whatever_the_server_does() {
    let (listener, address) = listen().await;
    let mut hasty = client(address, SHORT);
    // The server accepts connections, and never answers.
    assert!(matches!(post(&mut hasty).await, Err(Failure::Time(SHORT))));
    // The server sends one byte every 100 ms, then a body without end.
    let server = tokio::spawn(async move {
        let (waiting, _) = listener.accept().await.expect("the first");
        drop(waiting);
        let (mut slow, _) = listener.accept().await.expect("a connection");
        for _ in 0..20 {
            let _ = slow.write_all(b"H").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (mut endless, _) = listener.accept().await.expect("a connection");
        receive(&mut endless).await;
        let _ = endless.write_all(b"HTTP/1.1 400 Bad\r\nContent-Length: 1073741824\r\n\r\n").await;
        let mut sent = 0;
        while endless.write_all(&[b'x'; 4096]).await.is_ok() {
            sent += 4096;
        }
        let (mut garbage, _) = listener.accept().await.expect("a connection");
        receive(&mut garbage).await;
        let _ = garbage.write_all(b"SSH-2.0-OpenSSH\r\n").await;
        sent
    });
    assert!(matches!(post(&mut hasty).await, Err(Failure::Time(_) | Failure::Connection(_))));
    let mut client = client(address, LONG);
    let answer = post(&mut client).await.expect("answered");
    assert_eq!(answer.status.as_u16(), 400);
    assert!(answer.body.len() <= 64 << 10);
    assert!(matches!(post(&mut client).await, Err(Failure::Connection(_))));
    assert!(server.await.expect("no panic") < 64 << 20, "the connection was closed early");
    assert!(matches!(post(&mut client).await, Err(Failure::Connect(_))), "nobody listens");
}

#[tokio::test]
async fn hosts_that_do_not_exist_are_reported() {
    let endpoint = "pyroscope+http://.invalid..".parse().expect("a URL");
    let mut client = Client::new(endpoint, Vec::new(), None, SHORT);
    let error = post(&mut client).await.expect_err("no such host").to_string();
    assert!(error.starts_with("cannot resolve `.invalid..`: ") || error.starts_with("no answer within"), "{error}");
}
