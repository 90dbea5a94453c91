package ledger

// recordHeader is the length of a record before its payload.
const recordHeader = 60
