--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: attempts; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.attempts (
    attempt text NOT NULL,
    provider text NOT NULL,
    attempt_key text NOT NULL,
    job text NOT NULL,
    "position" bigint NOT NULL,
    state text NOT NULL,
    counted bigint NOT NULL,
    store text NOT NULL,
    lane bigint NOT NULL,
    start_sha256 text NOT NULL,
    admitted bigint NOT NULL,
    lease_expires bigint NOT NULL,
    quiet bigint NOT NULL,
    ended bigint,
    seq bigint NOT NULL,
    phase text NOT NULL,
    condition_code text NOT NULL,
    observed bigint NOT NULL,
    condition_at bigint NOT NULL,
    outcome_sha256 text NOT NULL,
    result_schema text NOT NULL,
    result_length bigint NOT NULL,
    result_sha256 text NOT NULL,
    fail_code text NOT NULL,
    fail_message text NOT NULL,
    fail_next text NOT NULL,
    entered bigint NOT NULL,
    reopened bigint NOT NULL,
    provenance bytea
);


--
-- Name: blobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.blobs (
    sha256 text NOT NULL,
    length bigint NOT NULL,
    touched bigint NOT NULL
);


--
-- Name: events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events (
    job text NOT NULL,
    idx bigint NOT NULL,
    at bigint NOT NULL,
    type text NOT NULL,
    state text NOT NULL,
    attempt text,
    phase text,
    condition_code text,
    failure text,
    principal text
);


--
-- Name: grants; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.grants (
    hash text NOT NULL,
    upload text NOT NULL,
    attempt text NOT NULL,
    expires bigint NOT NULL
);


--
-- Name: host_keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.host_keys (
    key_text text NOT NULL,
    generation text NOT NULL,
    created bigint NOT NULL
);


--
-- Name: host_receipts; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.host_receipts (
    attempt text NOT NULL,
    generation text NOT NULL,
    idx bigint NOT NULL,
    kind text NOT NULL,
    number bigint NOT NULL,
    key_text text NOT NULL,
    trust text NOT NULL,
    leaf bytea NOT NULL,
    proof text NOT NULL
);


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    job text NOT NULL,
    workspace text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    version bigint NOT NULL,
    changed bigint NOT NULL,
    created bigint NOT NULL,
    created_by text NOT NULL,
    cancel_at bigint,
    input_schema text NOT NULL,
    input_length bigint NOT NULL,
    input_sha256 text NOT NULL,
    attempt_limit bigint NOT NULL,
    attempts_used bigint NOT NULL,
    reopens bigint NOT NULL,
    admitted bigint NOT NULL,
    opened bigint NOT NULL,
    live text,
    result text
);


--
-- Name: labels; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.labels (
    job text NOT NULL,
    "position" bigint NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);


--
-- Name: meta; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.meta (
    name text NOT NULL,
    value text NOT NULL
);


--
-- Name: offerings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.offerings (
    provider text NOT NULL,
    kind text NOT NULL,
    available bigint NOT NULL,
    body bytea NOT NULL
);


--
-- Name: operations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.operations (
    workspace text NOT NULL,
    operation text NOT NULL,
    job text NOT NULL,
    payload text NOT NULL,
    principal text NOT NULL,
    created bigint NOT NULL,
    intent text NOT NULL,
    alias bigint NOT NULL
);


--
-- Name: provider_keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.provider_keys (
    key_id text NOT NULL,
    provider text NOT NULL,
    line text NOT NULL,
    created bigint NOT NULL
);


--
-- Name: providers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.providers (
    provider text NOT NULL,
    store text NOT NULL,
    seq bigint NOT NULL,
    observed bigint NOT NULL,
    heard bigint NOT NULL,
    lanes bigint NOT NULL,
    hello bytea NOT NULL
);


--
-- Name: times; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.times (
    job text NOT NULL,
    "position" bigint NOT NULL,
    state text NOT NULL,
    at bigint NOT NULL
);


--
-- Name: tokens; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tokens (
    hash text NOT NULL,
    workspace text NOT NULL,
    principal text NOT NULL,
    role text NOT NULL,
    retry_window bigint NOT NULL,
    created bigint NOT NULL,
    revoked bigint
);


--
-- Name: uploads; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.uploads (
    upload text NOT NULL,
    workspace text NOT NULL,
    content_type text NOT NULL,
    length bigint NOT NULL,
    sha256 text NOT NULL,
    created bigint NOT NULL,
    expires bigint,
    job text,
    "position" bigint
);


--
-- Data for Name: attempts; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.attempts VALUES ('att-a17029a6506b9e311eeabb87a9c448fe', 'node-1', 'key-1', 'job-0c19a4727c028d722cd9d4fa773a922c', 0, 'completed', 1, '8f607440136f26010dd958741cc0f89a', 0, 'f67e6b9ea9c721c511418f25f2cd8d904d3859f0be8b87d8da126a3e2791add4', 1796075894215293, 1796076494215293, 0, 1796075894254925, 0, '', '', 0, 0, 'bec0ed123818b670b72e659d334df96b42a391677d14b257d5c5a1ad7d222bd2', 'text/plain', 5, 'sha256:486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7', '', '', '', 0, 0, '\x7b22636f6e74726f6c6c6572223a2274657374222c226167656e74223a22222c2261646170746572223a2268747470222c22696e7075745f736861323536223a6e756c6c2c22726571756573745f736861323536223a6e756c6c2c22726573706f6e73655f736861323536223a6e756c6c2c22657865637574696f6e73223a5b5d2c22636c61696d6564223a5b5d7d');
INSERT INTO public.attempts VALUES ('att-4abca0f1196ec91f043e8162128bc717', 'node-1', 'key-2', 'job-0400d8df38af91d1fa1699b704cf0df8', 0, 'failed', 1, '8f607440136f26010dd958741cc0f89a', 0, 'fde5770044f95a15d2939410237f8ba8f87fd572cb4c1133018a950b3c3dc3a1', 1796075894300229, 1796076494300229, 0, 1796075894311611, 0, '', '', 0, 0, 'ed58729bb1413e51f152bd4dc996c8c33488bbcc3b5d90f31310fdd92bd8b333', '', 0, '', 'invalid_input', 'because', '', 1, 0, NULL);
INSERT INTO public.attempts VALUES ('att-c21a26912b38e24481fd967e1a1c609f', 'node-1', 'key-3', 'job-48ce12345175bd6d782a3b1b18421f24', 0, 'in_progress', 1, '8f607440136f26010dd958741cc0f89a', 0, 'da98621ce95d5d663727e40ad9d3dddb1dc8274fec9579bcb16fa2af8292a8a5', 1796075894349943, 1796076494349943, 0, NULL, 0, '', '', 0, 0, '', '', 0, '', '', '', '', 0, 0, NULL);


--
-- Data for Name: blobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.blobs VALUES ('sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', 5, 1796075894187763);
INSERT INTO public.blobs VALUES ('sha256:486ea46224d1bb4fb680f34f7c9ad96a8f24ec88be73ea8e5a6c65260e9cb8a7', 5, 1796075894236901);
INSERT INTO public.blobs VALUES ('sha256:f526795c95399cea27c055c842c3d6ab018ed0fa4f66f701c28ab22dec28237b', 6, 1796075894274011);
INSERT INTO public.blobs VALUES ('sha256:61578ad7d8afde50f365251304f0c5e711cfb3f18d4fc2f620f1969bac827f2f', 12, 1796075894323308);
INSERT INTO public.blobs VALUES ('sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', 0, 1796075894339650);
INSERT INTO public.blobs VALUES ('sha256:1d9283d848ea941ace1fe0d2378ef8b70056a0d4d1648b95a322d90163e78285', 5, 1796075894355953);


--
-- Data for Name: events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.events VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 1, 1796075894204010, 'created', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 2, 1796075894204010, 'state', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 3, 1796075894215293, 'attempt_started', 'open', 'att-a17029a6506b9e311eeabb87a9c448fe', NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 4, 1796075894254925, 'attempt_completed', 'finished', 'att-a17029a6506b9e311eeabb87a9c448fe', NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 5, 1796075894254925, 'state', 'finished', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 1, 1796075894281944, 'created', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 2, 1796075894281944, 'state', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 3, 1796075894300229, 'attempt_started', 'open', 'att-4abca0f1196ec91f043e8162128bc717', NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 4, 1796075894311611, 'attempt_failed', 'failed', 'att-4abca0f1196ec91f043e8162128bc717', NULL, NULL, 'invalid_input', NULL);
INSERT INTO public.events VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 5, 1796075894311611, 'state', 'failed', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-48ce12345175bd6d782a3b1b18421f24', 1, 1796075894343993, 'created', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-48ce12345175bd6d782a3b1b18421f24', 2, 1796075894343993, 'state', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-48ce12345175bd6d782a3b1b18421f24', 3, 1796075894349943, 'attempt_started', 'open', 'att-c21a26912b38e24481fd967e1a1c609f', NULL, NULL, NULL, NULL);
INSERT INTO public.events VALUES ('job-fdef7feae0019cd2847f1d64372df314', 1, 1796075894363598, 'created', 'open', NULL, NULL, NULL, NULL, 'alice');
INSERT INTO public.events VALUES ('job-fdef7feae0019cd2847f1d64372df314', 2, 1796075894363598, 'state', 'open', NULL, NULL, NULL, NULL, 'alice');


--
-- Data for Name: grants; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: host_keys; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: host_receipts; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 'default', 'echo', 'finished', 5, 1796075894254925, 1796075894204010, 'alice', NULL, 'text/plain', 5, 'sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824', 1, 1, 0, 1, 1796075894204010, NULL, 'att-a17029a6506b9e311eeabb87a9c448fe');
INSERT INTO public.jobs VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 'default', 'echo', 'failed', 5, 1796075894311611, 1796075894281944, 'alice', NULL, 'text/plain', 6, 'sha256:f526795c95399cea27c055c842c3d6ab018ed0fa4f66f701c28ab22dec28237b', 1, 1, 0, 1, 1796075894281944, NULL, NULL);
INSERT INTO public.jobs VALUES ('job-48ce12345175bd6d782a3b1b18421f24', 'default', 'page', 'open', 3, 1796075894349943, 1796075894343993, 'alice', NULL, 'application/octet-stream', 0, 'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', 1, 1, 0, 1, 1796075894343993, 'att-c21a26912b38e24481fd967e1a1c609f', NULL);
INSERT INTO public.jobs VALUES ('job-fdef7feae0019cd2847f1d64372df314', 'default', 'echo', 'open', 2, 1796075894363599, 1796075894363598, 'alice', NULL, 'text/plain', 5, 'sha256:1d9283d848ea941ace1fe0d2378ef8b70056a0d4d1648b95a322d90163e78285', 1, 0, 0, 0, 1796075894363598, NULL, NULL);


--
-- Data for Name: labels; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: meta; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.meta VALUES ('schema', '1');
INSERT INTO public.meta VALUES ('topology', 'f45abeb231ade11d667fca3e3388091c');


--
-- Data for Name: offerings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.offerings VALUES ('node-1', 'echo', 1, '\x7b226b696e64223a226563686f222c2270726f66696c65223a226563686f222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a226a6f62222c22636f6e74656e745f74797065223a22222c226d61785f6279746573223a3738363433322c22736368656d61223a6e756c6c7d2c2270757265223a66616c73657d');
INSERT INTO public.offerings VALUES ('node-1', 'page', 1, '\x7b226b696e64223a2270616765222c2270726f66696c65223a2270616765222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a2275706c6f6164222c22636f6e74656e745f74797065223a22696d6167652f706e67222c226d61785f6279746573223a33333535343433322c22736368656d61223a6e756c6c7d2c2270757265223a66616c73657d');
INSERT INTO public.offerings VALUES ('node-1', 'typed', 1, '\x7b226b696e64223a227479706564222c2270726f66696c65223a226563686f222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a226a6f62222c22636f6e74656e745f74797065223a22222c226d61785f6279746573223a313030302c22736368656d61223a7b2274797065223a226f626a656374222c227265717569726564223a5b226e225d2c2270726f70657274696573223a7b226e223a7b2274797065223a22696e7465676572222c226d6178696d756d223a397d7d7d7d2c2270757265223a66616c73657d');


--
-- Data for Name: operations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.operations VALUES ('default', 'op-1', 'job-0c19a4727c028d722cd9d4fa773a922c', '0c0bc9a590e98db241495bb8ffb3ad2e4947e33861c5b3252cdb2b504cbe1e3a', 'alice', 1796075894204010, '0c0bc9a590e98db241495bb8ffb3ad2e4947e33861c5b3252cdb2b504cbe1e3a', 0);
INSERT INTO public.operations VALUES ('default', 'op-2', 'job-0400d8df38af91d1fa1699b704cf0df8', 'b82554e57d346cbc6759692b221a2dd0f7a65676bc38aeebb1d6dd25c4f7ec99', 'alice', 1796075894281944, 'b82554e57d346cbc6759692b221a2dd0f7a65676bc38aeebb1d6dd25c4f7ec99', 0);
INSERT INTO public.operations VALUES ('default', 'op-3', 'job-48ce12345175bd6d782a3b1b18421f24', '3659fd52a0bb91a3ace7d3ba098808885ad16f692bcd7e3792adc611d3046248', 'alice', 1796075894343993, '3659fd52a0bb91a3ace7d3ba098808885ad16f692bcd7e3792adc611d3046248', 0);
INSERT INTO public.operations VALUES ('default', 'op-4', 'job-fdef7feae0019cd2847f1d64372df314', 'efc260a8be6bb9ca66826be7db1afc99f40edba788d3956fd4e2548821e11462', 'alice', 1796075894363598, 'efc260a8be6bb9ca66826be7db1afc99f40edba788d3956fd4e2548821e11462', 0);


--
-- Data for Name: provider_keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.provider_keys VALUES ('SHA256:sRy5W5AditARUFLZCD696+la9pn6lxMTdHja8vfNPX0', 'node-1', 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKwmW0FyKAvjMIi0zkUbIcHevwIQqttTeUxKRpKontsC node-1', 1796075894159729);


--
-- Data for Name: providers; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.providers VALUES ('node-1', '8f607440136f26010dd958741cc0f89a', 1, 1796075894169271, 1796075894169271, 2, '\x7b2273746f7265223a223866363037343430313336663236303130646439353837343163633066383961222c22736571223a312c2276657273696f6e73223a7b22636f6e74726f6c6c6572223a2274657374222c22617069223a5b315d7d2c226c616e6573223a322c22647261696e696e67223a66616c73652c22686f7374223a6e756c6c2c226f66666572696e6773223a5b7b226b696e64223a226563686f222c2270726f66696c65223a226563686f222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a226a6f62222c22636f6e74656e745f74797065223a22222c226d61785f6279746573223a3738363433322c22736368656d61223a6e756c6c7d2c2270757265223a66616c73657d2c7b226b696e64223a2270616765222c2270726f66696c65223a2270616765222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a2275706c6f6164222c22636f6e74656e745f74797065223a22696d6167652f706e67222c226d61785f6279746573223a33333535343433322c22736368656d61223a6e756c6c7d2c2270757265223a66616c73657d2c7b226b696e64223a227479706564222c2270726f66696c65223a226563686f222c2270726f66696c655f646967657374223a227368613235363a31393030656162366330323834383364373132363539396565366635306465306432373930376235633635666139303532343538306234623066393835326230222c2261646170746572223a2268747470222c22617661696c61626c65223a747275652c22726561736f6e223a22222c22696e707574223a7b2266726f6d223a226a6f62222c22636f6e74656e745f74797065223a22222c226d61785f6279746573223a313030302c22736368656d61223a7b2274797065223a226f626a656374222c227265717569726564223a5b226e225d2c2270726f70657274696573223a7b226e223a7b2274797065223a22696e7465676572222c226d6178696d756d223a397d7d7d7d2c2270757265223a66616c73657d5d7d');


--
-- Data for Name: times; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.times VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 0, 'open', 1796075894204010);
INSERT INTO public.times VALUES ('job-0c19a4727c028d722cd9d4fa773a922c', 1, 'finished', 1796075894254925);
INSERT INTO public.times VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 0, 'open', 1796075894281944);
INSERT INTO public.times VALUES ('job-0400d8df38af91d1fa1699b704cf0df8', 1, 'failed', 1796075894311611);
INSERT INTO public.times VALUES ('job-48ce12345175bd6d782a3b1b18421f24', 0, 'open', 1796075894343993);
INSERT INTO public.times VALUES ('job-fdef7feae0019cd2847f1d64372df314', 0, 'open', 1796075894363598);


--
-- Data for Name: tokens; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tokens VALUES ('db0fba2dbf32f110177ca9cea67cde776f582da7fdc27582a819c65cba025359', 'default', 'first', 'admin', 0, 1796075894151729, NULL);
INSERT INTO public.tokens VALUES ('248b91a0deac7d2c124f30b1ba6b633178034625f22fd4aa61d42aed2ee8bb8e', 'default', 'alice', 'admin', 0, 1796075894153293, NULL);


--
-- Data for Name: uploads; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.uploads VALUES ('up-23378c9ae32f8e7389321136205d9351', 'default', 'image/png', 12, 'sha256:61578ad7d8afde50f365251304f0c5e711cfb3f18d4fc2f620f1969bac827f2f', 1796075894328510, NULL, 'job-48ce12345175bd6d782a3b1b18421f24', 0);


--
-- Name: attempts attempts_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (attempt);


--
-- Name: attempts attempts_provider_attempt_key_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_provider_attempt_key_key UNIQUE (provider, attempt_key);


--
-- Name: blobs blobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.blobs
    ADD CONSTRAINT blobs_pkey PRIMARY KEY (sha256);


--
-- Name: events events_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (job, idx);


--
-- Name: grants grants_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.grants
    ADD CONSTRAINT grants_pkey PRIMARY KEY (hash);


--
-- Name: host_keys host_keys_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.host_keys
    ADD CONSTRAINT host_keys_pkey PRIMARY KEY (key_text);


--
-- Name: host_receipts host_receipts_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.host_receipts
    ADD CONSTRAINT host_receipts_pkey PRIMARY KEY (attempt, generation, idx);


--
-- Name: jobs jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (job);


--
-- Name: labels labels_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.labels
    ADD CONSTRAINT labels_pkey PRIMARY KEY (job, "position");


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);


--
-- Name: offerings offerings_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.offerings
    ADD CONSTRAINT offerings_pkey PRIMARY KEY (provider, kind);


--
-- Name: operations operations_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (workspace, operation);


--
-- Name: provider_keys provider_keys_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.provider_keys
    ADD CONSTRAINT provider_keys_pkey PRIMARY KEY (key_id);


--
-- Name: providers providers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.providers
    ADD CONSTRAINT providers_pkey PRIMARY KEY (provider);


--
-- Name: times times_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.times
    ADD CONSTRAINT times_pkey PRIMARY KEY (job, "position");


--
-- Name: tokens tokens_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (hash);


--
-- Name: uploads uploads_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.uploads
    ADD CONSTRAINT uploads_pkey PRIMARY KEY (upload);


--
-- Name: attempts_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX attempts_job ON public.attempts USING btree (job, "position");


--
-- Name: attempts_lease; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX attempts_lease ON public.attempts USING btree (state, quiet, lease_expires);


--
-- Name: attempts_provider; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX attempts_provider ON public.attempts USING btree (provider, state, admitted, attempt);


--
-- Name: attempts_result; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX attempts_result ON public.attempts USING btree (result_sha256);


--
-- Name: grants_expires; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX grants_expires ON public.grants USING btree (expires);


--
-- Name: jobs_cancel_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_cancel_at ON public.jobs USING btree (cancel_at);


--
-- Name: jobs_changed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_changed ON public.jobs USING btree (workspace, changed);


--
-- Name: jobs_feed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_feed ON public.jobs USING btree (kind, state, created, job);


--
-- Name: jobs_input; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_input ON public.jobs USING btree (input_sha256);


--
-- Name: jobs_workspace; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX jobs_workspace ON public.jobs USING btree (workspace, created, job);


--
-- Name: labels_name; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX labels_name ON public.labels USING btree (name, value, job);


--
-- Name: offerings_kind; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX offerings_kind ON public.offerings USING btree (kind);


--
-- Name: operations_intent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX operations_intent ON public.operations USING btree (workspace, principal, intent);


--
-- Name: uploads_expires; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX uploads_expires ON public.uploads USING btree (expires);


--
-- Name: uploads_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX uploads_job ON public.uploads USING btree (job, "position");


--
-- Name: uploads_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX uploads_sha256 ON public.uploads USING btree (sha256);


--
-- PostgreSQL database dump complete
--


