package attempt

// Ceilings of a record's parts, in bytes unless said otherwise. Step and
// Decode enforce the same ones (I33).
const (
	MaxNameBytes       = 128       // key, reference, job, kind and the like
	MaxOriginBytes     = 512       // API origin
	MaxSchemaBytes     = 256       // input schema
	MaxInputBytes      = 786_432   // length of a job's input
	MaxLanes           = 256       // lanes are 0 … MaxLanes−1
	MaxStartBytes      = 4 << 10   // START body
	MaxReplyBytes      = 64 << 10  // kept answer of the service
	MaxCompleteBytes   = 1_114_112 // COMPLETE body: 786,432 result bytes in base64 and what is around them
	MaxFailBytes       = 96 << 10  // FAIL body
	MaxEvidenceBytes   = 262_144   // protected evidence
	MaxExecutions      = 2         // executions of one attempt (I27)
	MaxSavedReceipts   = 32        // receipts kept per execution
	MaxProofBytes      = 16 << 10  // proof of one receipt
	MaxSavedBytes      = 128 << 10 // leaves and proofs together, per execution
	MaxHostKeyBytes    = 256       // verifier key of a host
	MaxFacts           = 16        // facts kept
	MaxFactBytes       = 512       // one fact's text
	MaxNoteBytes       = 512       // an operator's note
	MaxFailureBytes    = 64        // failure class and fact name
	maxStructure       = 16 << 10  // member names, numbers, times and short identities of a whole record
	maxEscape          = 6         // bytes of the longest escape per byte of text
	maxReceiptOverhead = 64        // member names, index and padding per saved receipt
)

// MaxRecordBytes bounds an encoded record. It is the sum of the ceilings above
// for the largest state, TerminalHeld with FAIL, a suppressed candidate and
// two executions, and the one number for encoding, decoding and reservation.
const MaxRecordBytes = maxStructure +
	((MaxStartBytes + 2) / 3 * 4) +
	3*((MaxReplyBytes+2)/3*4) + // admission, refusal or receipt, receipts answer
	((MaxFailBytes + 2) / 3 * 4) + ((MaxCompleteBytes + 2) / 3 * 4) + ((MaxEvidenceBytes + 2) / 3 * 4) +
	MaxExecutions*(((MaxSavedBytes+2)/3*4)+MaxSavedReceipts*maxReceiptOverhead) +
	MaxFacts*(maxEscape*MaxFactBytes) +
	maxEscape*(MaxExecutions*MaxHostKeyBytes+MaxNoteBytes+MaxOriginBytes+MaxSchemaBytes)
