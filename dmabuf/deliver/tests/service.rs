//! The service with an exporter of its own: order, limits, and what becomes of leases.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use batchfs_dmabuf::client::{Client, ClientError, Export, Reply, Wanted};
use batchfs_dmabuf::{
    Body, Exported, Exporter, Exports, Kind, Peers, Refusal, Service, ServiceLimits, Tensor, Then,
};
use batchfs_region::{Arena, Backing, Config, page_size};
use serde_json::{Value, json};

/// Batches of 5,000 bytes, each of which has the value of its step. The stream `slow` waits for `go`.
#[derive(Clone)]
struct Fake {
    arena: Arena,
    go: Arc<(Mutex<bool>, Condvar)>,
}

impl Fake {
    fn new(backing: Option<Backing>) -> Fake {
        let arena = Arena::new(&Config { limit: 256 * page_size(), backing }).unwrap();
        Fake { arena, go: Arc::default() }
    }

    fn go(&self) {
        *self.go.0.lock().unwrap() = true;
        self.go.1.notify_all();
    }
}

impl Exporter for Fake {
    fn about(&self) -> Value {
        json!({ "streams": ["x"] })
    }

    fn view(&self, spec: &str) -> Result<Arc<dyn Exports>, Refusal> {
        match spec {
            "" => Ok(Arc::new(self.clone())),
            other => Err(Refusal { errno: 2, message: format!("no view {other}") }),
        }
    }
}

impl Exports for Fake {
    fn export(&self, stream: &str, step: u64, _face: &str, _kind: Kind, then: Then) {
        let arena = self.arena.clone();
        let make = move || {
            let mut region = arena.alloc(5000, "x".into()).unwrap();
            region.bytes_mut().unwrap().fill(step as u8);
            let region = region.freeze();
            let tensors = vec![Tensor::packed("x".into(), "uint8".into(), 1, vec![5000], 0)];
            let (label, body) = ("x".to_owned(), Body::Region(region));
            then(Ok(Exported { label, body, tensors, held: Box::new(()) }));
        };
        if stream == "slow" {
            let go = self.go.clone();
            std::thread::spawn(move || {
                drop(go.1.wait_while(go.0.lock().unwrap(), |go| !*go).unwrap());
                make();
            });
        } else {
            make();
        }
    }
}

const LIMITS: ServiceLimits =
    ServiceLimits { clients: 8, in_flight: 4, leases: 10, bytes: 1 << 19 };

fn start(fake: &Fake) -> Service {
    Service::start(Arc::new(fake.clone()), Peers::Own, LIMITS).unwrap()
}

fn wanted(stream: &str, step: u64) -> Wanted {
    Wanted { stream: stream.to_owned(), step, ..Wanted::default() }
}

fn value(export: &Export) -> u8 {
    let file = std::fs::File::from(export.file.try_clone().unwrap());
    let mut bytes = vec![0; 5000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|b| *b == bytes[0]));
    bytes[0]
}

fn figure(service: &Service, name: &str) -> u64 {
    service.figures().all().iter().find(|f| f.0 == name).unwrap().3
}

fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < end, "it does not come to pass");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn batches_come_and_go() {
    for backing in [None, Some(Backing::Memfd)] {
        let fake = Fake::new(backing);
        let service = start(&fake);
        let client = Client::connect(service.path()).unwrap();
        assert_eq!(client.hello().unwrap()["streams"], json!(["x"]));
        let mut inodes = Vec::new();
        for step in 0..50 {
            let export = client.export(&wanted("x", step)).unwrap();
            assert_eq!(u64::from(value(&export)), step);
            assert_eq!(export.descriptor.tensors[0].shape, [5000]);
            let file = std::fs::File::from(export.file);
            inodes.push(file.metadata().unwrap().ino());
            drop(file);
            client.release(vec![export.descriptor.lease]).unwrap();
            until(|| figure(&service, "leases") == 0);
        }
        assert!(inodes.iter().all(|i| *i == inodes[0]), "the same memory each time");
        drop(client);
        until(|| figure(&service, "clients") == 0);
        assert_eq!(fake.arena.stats().live + fake.arena.stats().outside, 0);
    }
}

#[test]
fn a_dead_clients_memory_is_freed_and_not_filled_again() {
    let fake = Fake::new(None);
    let service = start(&fake);
    let client = Client::connect(service.path()).unwrap();
    let export = client.export(&wanted("x", 1)).unwrap();
    drop(client);
    until(|| figure(&service, "clients") == 0);
    assert_eq!((figure(&service, "leases"), figure(&service, "leased_bytes")), (0, 0));
    assert_eq!(fake.arena.stats().outside, Arena::charge(8192), "its descriptor is left");
    let other = Client::connect(service.path()).unwrap();
    let next = other.export(&wanted("x", 2)).unwrap();
    assert_eq!((value(&export), value(&next)), (1, 2));
    drop(export);
    fake.arena.sweep();
    assert_eq!((fake.arena.stats().outside, fake.arena.stats().idle), (0, 0));
}

#[test]
fn a_slow_batch_holds_up_nothing_but_its_own_request() {
    let fake = Fake::new(None);
    let service = start(&fake);
    let client = Client::connect(service.path()).unwrap();
    let slow = client.request(&wanted("slow", 7), Vec::new()).unwrap();
    let quick = client.request(&wanted("x", 8), Vec::new()).unwrap();
    let mut got = Vec::new();
    for _ in 0..2 {
        let (id, Reply::Export(export)) = client.receive().unwrap() else { panic!() };
        got.push((id.unwrap(), value(&export)));
        fake.go();
    }
    assert_eq!(got, [(quick, 8), (slow, 7)]);
}

#[test]
fn what_is_under_way_is_dropped_with_its_client() {
    let fake = Fake::new(None);
    let service = start(&fake);
    let client = Client::connect(service.path()).unwrap();
    for step in 0..20 {
        client.request(&wanted("slow", step), Vec::new()).unwrap();
    }
    let other = Client::connect(service.path()).unwrap();
    until(|| other.stats().is_ok());
    drop(client);
    until(|| figure(&service, "clients") == 1);
    fake.go();
    until(|| fake.arena.stats().live == 0);
    assert_eq!((figure(&service, "leases"), fake.arena.stats().outside), (0, 0));
    drop(service);
    assert!(matches!(other.stats(), Err(ClientError::Gone(_))));
}

#[test]
fn a_client_gets_what_it_may_have_and_no_more() {
    let fake = Fake::new(None);
    let service = start(&fake);
    let client = Client::connect(service.path()).unwrap();
    let held: Vec<_> = (0..10).map(|s| client.export(&wanted("x", s)).unwrap()).collect();
    let refused = client.export(&wanted("x", 10)).unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { errno: libc::EDQUOT, .. }), "{refused}");
    client.release(vec![held[0].descriptor.lease]).unwrap();
    client.export(&wanted("x", 10)).unwrap();
    let view = Wanted { view: "other".to_owned(), ..wanted("x", 0) };
    let refused = client.export(&view).unwrap_err();
    client.release(vec![held[1].descriptor.lease]).unwrap();
    assert!(!refused.to_string().is_empty());
    // Others have theirs, up to as many clients as there may be.
    let others: Vec<_> = (1..8).map(|_| Client::connect(service.path()).unwrap()).collect();
    assert!(others.iter().all(|c| c.hello().is_ok()));
    let one_more = Client::connect(service.path()).unwrap();
    let refused = one_more.hello().unwrap_err();
    assert!(matches!(&refused, ClientError::Refused { errno: libc::EUSERS, .. }), "{refused}");
}

#[test]
fn descriptors_do_not_outlive_an_exec() {
    let fake = Fake::new(None);
    let service = start(&fake);
    let client = Client::connect(service.path()).unwrap();
    let export = client.export(&wanted("x", 1)).unwrap();
    for fd in [export.file.as_fd(), client.as_fd()] {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
    // Nor do those of the service, which are all that the two processes have in common.
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
        let flags = text.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        let fd_is_inherited = flags & libc::O_CLOEXEC == 0;
        let is_ours = text.contains("eventfd") || text.contains("tfd:");
        assert!(!(fd_is_inherited && is_ours), "{text}");
    }
}
