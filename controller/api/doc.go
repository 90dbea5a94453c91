// Package api is the public contract of the job service: the messages of its
// two faces (provider and user), the headers, routes and byte ceilings, the
// problem codes, the failure codes and the conditions, with strict decoding and
// validation. Service, controller and agentctl use exactly these types.
//
// It owns the formats and the rules that one message can be checked against
// alone. It must not know storage, HTTP servers or clients, signatures, or what
// state a job is in.
//
// # Versions
//
// Every request names the version that it speaks in [HeaderVersion]; a GET of
// the user side without it is answered in the current version, so that curl
// just works. Within a version every object is closed (I34): an added, missing,
// repeated or misspelt member is refused with its name. Members whose tag says
// omitempty may be left out; all others are required, null included.
//
// # Encoding
//
// Messages are written by [Encode] (the canonical form of package protocol) and
// read by [Decode]. Times are RFC 3339 in UTC with six fractional digits,
// durations whole milliseconds, digests "sha256:" and 64 hexadecimal digits,
// bytes canonical standard base64.
package api
