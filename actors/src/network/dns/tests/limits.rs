//! Differences between what clients ask and what upstream servers are asked.

use jaco_policy::network::dns::admission::PER_CLIENT;

use super::{
    external::{LONG, addressed, coded, forwarding, host_port, upstream},
    *,
};

#[tokio::test]
async fn clients_get_their_own_edns_record_only() {
    let (server, _) = upstream(|query, _| {
        let edns = query.edns.clone().unwrap();
        assert!(edns.options().as_ref().is_empty());
        assert_eq!(edns.max_payload(), wire::MAX_PAYLOAD);
        let mut answer = addressed(query, 60);
        answer.set_edns(edns);
        Some(answer)
    })
    .await;
    let world = forwarding(vec![server], LONG).await;
    let plain = query("www.example.com", RecordType::A);
    let mut with_edns = plain.clone();
    with_edns.set_edns(hickory_proto::op::Edns::new());
    for (asked, expected) in [(&plain, false), (&with_edns, true), (&plain, false)] {
        let reply = world.ask(FRONT, asked, false).await;
        assert_eq!(reply.answers.len(), 1);
        assert_eq!(reply.edns.is_some(), expected);
    }
}

#[tokio::test]
async fn servers_without_edns_are_asked_without() {
    let (server, queries) = upstream(|query, _| match query.edns {
        Some(_) => {
            let mut answer = coded(query, ResponseCode::FormErr);
            answer.edns = None;
            Some(answer)
        }
        None => Some(addressed(query, 60)),
    })
    .await;
    let world = forwarding(vec![server], LONG).await;
    assert_eq!(
        world.addresses(FRONT, "www.example.com").await,
        ["192.0.2.1"]
    );
    assert_eq!(queries.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn questions_beyond_the_limit_fail_at_once() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = host_port(silent.local_addr().unwrap());
    let world = forwarding(vec![server], LONG).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(world.at(FRONT)).await.unwrap();
    for n in 0..=PER_CLIENT {
        let asked = query(&format!("n{n}.example.com"), RecordType::A);
        client.send(&asked.to_vec().unwrap()).await.unwrap();
    }
    let mut buffer = [0; 600];
    let length = timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap();
    let reply = Message::from_vec(&buffer[..length.unwrap()]).unwrap();
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    let name = format!("n{PER_CLIENT}.example.com.");
    assert_eq!(reply.queries[0].name().to_string(), name);
    let nothing = client.try_recv(&mut buffer).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn servers_in_the_pool_are_not_asked() {
    let (server, queries) = upstream(|query, _| Some(addressed(query, 60))).await;
    let world = forwarding(vec![server], LONG).await;
    assert_eq!(world.addresses(FRONT, "a.example.com").await.len(), 1);
    // A member learns the pool after its start.
    let mut state = shop();
    let pool = jaco_proto::v1::ClusterMeta {
        ipam_pool: "127.0.0.0/16".to_owned(),
        ipam_block: 24,
        ..Default::default()
    };
    state.cluster = Some(Arc::new(pool));
    world.state.set(&state);
    let asked = query("b.example.com", RecordType::A);
    let reply = world.ask(FRONT, &asked, false).await;
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(queries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn names_of_servers_are_resolved_in_the_background() {
    let (mut server, _) = upstream(|query, _| Some(addressed(query, 60))).await;
    server.host = "localhost".to_owned();
    let unknown = HostPort {
        host: "nothing.invalid".to_owned(),
        port: 53,
    };
    let world = forwarding(vec![unknown, server], LONG).await;
    let mut addresses = world.upstreams[1].subscribe();
    let resolved = addresses.wait_for(|addresses| !addresses.is_empty());
    timeout(PATIENCE, resolved).await.unwrap().unwrap();
    let asked = query("www.example.com", RecordType::A);
    let reply = world.ask(FRONT, &asked, false).await;
    assert_eq!(reply.answers.len(), 1);
}
