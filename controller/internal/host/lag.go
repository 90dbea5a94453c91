package host

// Behind is how many receipts the agent had, when it was last read, beyond the
// highest one that this controller holds. ok is false before the first reading
// and where the witness cannot be read.
func (h *Host) Behind() (receipts int64, ok bool) {
	h.mu.Lock()
	current, known := h.host, h.known
	h.mu.Unlock()
	if !known {
		return 0, false
	}
	seen, err := h.witness.Seen(current.Generation)
	if err != nil {
		return 0, false
	}
	highest := int64(-1)
	if seen.Highest != nil {
		highest = int64(seen.Highest.Index)
	}
	return max(0, int64(current.Index.Head)-highest), true
}
