//! The packets of the protocol, which docs/dmabuf.md describes.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exporter::{Refusal, Tensor};

/// The version of the protocol.
pub const PROTOCOL: u64 = 1;

/// Most bytes of a request.
pub(crate) const REQUEST: usize = 4096;

/// Most bytes of a reply.
pub(crate) const REPLY: usize = 64 << 10;

/// What a client says. Fields that are not known are left alone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<u64>,
    pub(crate) op: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) view: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) stream: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) face: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) kind: String,
    /// Leases that the client gives back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) release: Vec<u64>,
}

impl Request {
    /// Reads a packet. With the reason comes the packet's number, if that can be read.
    pub(crate) fn parse(packet: &[u8]) -> Result<Request, (Option<u64>, Refusal)> {
        let request: Request = serde_json::from_slice(packet).map_err(|e| {
            let found: Option<Value> = serde_json::from_slice(packet).ok();
            let id = found.and_then(|v| v.get("id").and_then(Value::as_u64));
            (id, Refusal::new(Errno::EBADMSG, format!("this is no request: {e}")))
        })?;
        match request.version {
            Some(PROTOCOL) => Ok(request),
            other => {
                let said = other.map_or("none".to_owned(), |v| v.to_string());
                let why = format!(
                    "the request's version is {said}; this service speaks version {PROTOCOL}"
                );
                Err((request.id, Refusal::new(Errno::EPROTONOSUPPORT, why)))
            }
        }
    }
}

/// What comes with a descriptor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// The protocol's.
    pub version: u64,
    /// The request's number.
    pub id: Option<u64>,
    /// To be given back.
    pub lease: u64,
    /// `memfd` or `dmabuf`.
    pub kind: String,
    /// Bytes of the file.
    pub size: u64,
    /// Whether the pages are those that the mount serves.
    pub shared: bool,
    /// What is where in them.
    pub tensors: Vec<Tensor>,
}

/// A reply that refuses.
pub(crate) fn refused(id: Option<u64>, refusal: &Refusal) -> Vec<u8> {
    let name = format!("{:?}", Errno::from_raw(refusal.errno));
    let error = json!({ "errno": name, "code": refusal.errno, "message": short(&refusal.message) });
    json!({ "version": PROTOCOL, "id": id, "error": error }).to_string().into_bytes()
}

/// The beginning of a reason that would not fit into a reply: names may be many, and be long.
fn short(message: &str) -> std::borrow::Cow<'_, str> {
    // JSON has six bytes for one at most.
    const MOST: usize = REPLY / 8;
    if message.len() <= MOST {
        return message.into();
    }
    let end = (0..=MOST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
    format!("{}…", &message[..end]).into()
}

/// Any other reply without a descriptor.
pub(crate) fn answer(id: Option<u64>, fields: Value) -> Vec<u8> {
    let mut whole = json!({ "version": PROTOCOL, "id": id });
    if let (Value::Object(whole), Value::Object(fields)) = (&mut whole, fields) {
        whole.extend(fields);
    }
    let text = whole.to_string().into_bytes();
    if text.len() <= REPLY {
        return text;
    }
    let why = format!("the answer takes {} bytes, and a reply has at most {REPLY}", text.len());
    refused(id, &Refusal::new(Errno::EMSGSIZE, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reply_is_too_long() {
        let read = |text: Vec<u8>| {
            assert!(text.len() <= REPLY, "{}", text.len());
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let names = vec!["a stream with a name"; 5000];
        let told = read(answer(Some(3), json!({ "streams": names })));
        assert_eq!((&told["id"], &told["error"]["errno"]), (&json!(3), &json!("EMSGSIZE")));
        let told = read(answer(Some(3), json!({ "streams": names[..2] })));
        assert_eq!(told["streams"], json!(names[..2]));
        for c in ["x", "\u{1}", "é", "\""] {
            let why = format!("a{}", c.repeat(100_000));
            let told = read(refused(Some(4), &Refusal::new(Errno::ENOENT, why.clone())));
            let said = told["error"]["message"].as_str().unwrap();
            assert!(why.starts_with(said.strip_suffix('…').unwrap()) && said.len() > 8000);
        }
        let told = read(refused(None, &Refusal::new(Errno::ENOENT, "a b")));
        assert_eq!(told["error"]["message"], "a b");
    }

    #[test]
    fn what_is_no_request_says_why_and_keeps_its_number() {
        let ask = |text: &str| Request::parse(text.as_bytes());
        let good = ask(
            r#"{"version":1,"id":7,"op":"export","stream":"x","step":18446744073709551615,"new":[]}"#,
        );
        let good = good.unwrap();
        assert_eq!((good.id, good.step, good.face.as_str()), (Some(7), Some(u64::MAX), ""));
        for (text, id, errno, why) in [
            (r#"{"version":2,"id":7}"#, Some(7), Errno::EPROTONOSUPPORT, "version is 2"),
            (r#"{"id":8}"#, Some(8), Errno::EPROTONOSUPPORT, "version is none"),
            (r#"{"version":1,"id":9,"step":-1}"#, Some(9), Errno::EBADMSG, "no request"),
            (r#"{"version":1,"id":9,"step":"#, None, Errno::EBADMSG, "no request"),
            ("\0\u{7f}", None, Errno::EBADMSG, "no request"),
            ("[]", None, Errno::EBADMSG, "no request"),
        ] {
            let (found, refusal) = ask(text).unwrap_err();
            assert_eq!((found, refusal.errno), (id, errno as i32), "{text}");
            assert!(refusal.message.contains(why), "{}", refusal.message);
        }
    }
}
