package main

import "net/http"

type tensor struct {
	Name     string  `json:"name"`
	Shape    []int64 `json:"shape"`
	DataType string  `json:"datatype"`
	Data     any     `json:"data"`
}

// kserve is the model as a server of the Open Inference Protocol: one input
// "text" of BYTES, and for each text its language and the model's confidence.
func kserve() http.Handler {
	ready := func(rw http.ResponseWriter, _ *http.Request) {
		write(rw, http.StatusOK, map[string]bool{"ready": true})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/health/ready", ready)
	mux.HandleFunc("GET /v2/health/live", ready)
	mux.HandleFunc("GET /v2/models/"+modelName+"/ready", ready)
	mux.HandleFunc("POST /v2/models/"+modelName+"/infer", infer)
	return mux
}

func kserveError(rw http.ResponseWriter, status int, message string) {
	write(rw, status, map[string]string{"error": message})
}

func infer(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		ID     string `json:"id"`
		Inputs []struct {
			Name     string   `json:"name"`
			Shape    []int64  `json:"shape"`
			DataType string   `json:"datatype"`
			Data     []string `json:"data"`
		} `json:"inputs"`
	}
	if !read(rw, r, kserveError, &asked) {
		return
	}
	if len(asked.Inputs) != 1 || asked.Inputs[0].Name != "text" || asked.Inputs[0].DataType != "BYTES" {
		kserveError(rw, http.StatusBadRequest, "one input is taken: text, of BYTES")
		return
	}
	languages, confidences := []string{}, []float64{}
	for _, text := range asked.Inputs[0].Data {
		found, err := detect([]byte(text))
		if err != nil {
			kserveError(rw, http.StatusBadRequest, err.Error())
			return
		}
		languages, confidences = append(languages, found.Language), append(confidences, found.Confidence)
	}
	shape := []int64{int64(len(languages))}
	write(rw, http.StatusOK, map[string]any{
		"model_name": modelName, "model_version": "1", "id": asked.ID,
		"outputs": []tensor{{"language", shape, "BYTES", languages}, {"confidence", shape, "FP64", confidences}},
	})
}
